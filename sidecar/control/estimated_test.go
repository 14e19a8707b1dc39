// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/observe"
)

// holdGraph makes the repository's next models one ONNX model, a small residual network.
func (r *rig) holdGraph(name string) {
	for _, m := range calibrate.Whole() {
		if m.Name != "residual" {
			continue
		}
		file, err := m.Build()
		require.NoError(r.t, err)
		r.repository.content = map[string][]byte{"graph": file}
		r.repository.hold(&repo.Model{
			Name: name, Digest: "d-" + name, Versions: []int64{1}, Files: []repo.File{{Path: "1/model.onnx", Digest: "graph", Size: int64(len(file))}},
			Config: &tritonpb.ModelConfig{
				Name: name, Backend: "onnxruntime", MaxBatchSize: 8,
				Input: []*tritonpb.ModelInput{{Name: calibrate.Input, DataType: tritonpb.DataType_TYPE_FP32, Dims: m.Inputs}},
			},
		})
	}
}

func profileOf(t *testing.T, s *policy.Snapshot, model, gpuType string) *policy.Profile {
	t.Helper()
	for _, p := range s.GetProfiles() {
		if p.GetModel() == model && p.GetGpuType() == gpuType {
			return p
		}
	}
	t.Fatalf("the snapshot has no profile of %s on %s", model, gpuType)
	return nil
}

// A model that was never executed has l(b, p), requirements, utilisations and memory in the snapshot that the next plan is made of.
func TestAModelIsPlannedWithItsEstimate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.holdGraph("resnet")
		stop := r.start()
		defer stop()
		pass(time.Second)

		event := r.lastEvent(events.ModelsEstimated)
		require.Equal(t, "1 model estimated: resnet", event.Message)
		s := r.policies.question(r.policies.calls() - 1)
		p := profileOf(t, s, "resnet", "T4")
		require.True(t, p.GetUsable())
		require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, p.GetSource())
		slow, ok := p.Latency(8, 20)
		require.True(t, ok)
		fast, _ := p.Latency(8, 100)
		require.Greater(t, slow, 1.5*fast, "a fifth of the GPU takes longer")
		bound, _ := p.Bound(8, 100)
		require.Greater(t, bound, .1*fast, "nobody measured it")
		for name, value := range map[string]func(batch, share uint32) (float64, bool){"creq": p.Creq, "mreq": p.Mreq, "bandwidth": p.Bandwidth, "L2": p.L2} {
			v, known := value(8, 100)
			require.True(t, known, name)
			require.Positive(t, v, name)
		}
		m := s.GetModels()[0]
		require.InEpsilon(t, 4*6.325e6, m.GetMemoryBytes(), .01, "6.3 million weights")
		require.Greater(t, m.GetActivationBytesPerRow(), uint64(4*3*96*96), "more than inputs and outputs are alive at once")

		shown, err := r.Model("resnet")
		require.NoError(t, err)
		require.Len(t, shown.Estimates, 1)
		require.True(t, shown.Estimates[0].Fits)
	})
}

// What is observed moves the source on; where it is beyond the estimate's bound an event says so, once.
func TestAnEstimateThatIsOffIsAnEvent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.holdGraph("resnet")
		stop := r.start()
		defer stop()
		pass(time.Second)
		for range 60 {
			for range 4 {
				now := time.Now()
				r.recorder.Executed(observe.Execution{
					Model: "resnet", Partition: "gpu0", GPUType: "T4", ThreadPercentage: 100, Rows: 4, Requests: 4, Start: now.Add(-200 * time.Millisecond), End: now,
				})
				pass(250 * time.Millisecond)
			}
		}
		var off []string
		for _, e := range r.Events(0) {
			if e.Kind == events.EstimateOff {
				off = append(off, e.Message)
			}
		}
		require.Len(t, off, 1)
		require.Contains(t, off[0], "resnet on T4 takes ")
		require.Contains(t, off[0], "batch 4 at 100%")
		for _, p := range r.recorder.Profiles() {
			require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_OBSERVED, p.GetSource())
		}
	})
}

// A file that breaks the reader costs its model the estimate, and nothing else.
func TestAModelWithoutAnEstimateServesAsBefore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.holdGraph("resnet")
		r.repository.content["graph"] = r.repository.content["graph"][:1000]
		stop := r.start()
		defer stop()
		pass(time.Second)
		require.NotContains(t, r.kinds(), events.ModelsEstimated)
		require.Equal(t, 1, r.policies.calls(), "there is nothing to plan anew for")
		shown, err := r.Model("resnet")
		require.NoError(t, err)
		require.Equal(t, api.ModelReady, shown.State)
		require.Empty(t, shown.Estimates[0].Points)
		require.Contains(t, shown.Estimates[0].Reason, "resnet/1/model.onnx")
	})
}
