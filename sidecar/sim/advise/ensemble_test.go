// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// chained is a world of three models and an ensemble of them, which alone is asked for, as a snapshot of conch has them.
func chained(gpus int, rate float64, slo time.Duration) *policy.Snapshot {
	s := world(gpus, 0, "prepare", "network", "finish")
	s.Models = append(s.Models, &policy.Model{Name: "chain", SloUs: slo.Microseconds(), MaxBatchSize: 32, Batchable: true, Rate: rate, RowRate: rate, Burstiness: 1})
	for _, p := range s.Current.Partitions {
		p.Instances = append(p.Instances, policy.ModelInstance("chain", 0))
	}
	chain := &policy.Pipeline{Name: "chain", SloUs: slo.Microseconds(), Rate: rate, Rows: 1, Steps: []*policy.PipelineStep{
		{Model: "prepare", Rows: 1}, {Model: "network", After: []uint32{0}, Rows: 1}, {Model: "finish", After: []uint32{1}, Rows: 1},
	}}
	s.Pipelines = []*policy.Pipeline{chain}
	models := map[string]*policy.Model{}
	for _, m := range s.Models {
		models[m.Name] = m
	}
	chain.Load(models)
	return s
}

// TestAnEnsembleIsSimulatedAsItsSteps: a request takes three executions of 8.5 ms, one after the other, and is judged by the SLO of the whole.
func TestAnEnsembleIsSimulatedAsItsSteps(t *testing.T) {
	in := advise.Input{Snapshot: chained(3, 60, 150*time.Millisecond), Seeds: []uint64{1, 2}, Compare: true}
	before := proto.CloneOf(in.Snapshot)
	a, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)
	require.InDelta(t, 60, a.Rate, 1e-6, "a request of an ensemble is one")
	// Three GPUs run at most 3/25.5 ms = 118 requests per second, a step at a time.
	require.Positive(t, a.Triton.Rate)
	require.Less(t, a.Triton.Rate, 118.)
	require.Greater(t, a.Low, 2., "Conch batches the steps")
	require.NotContains(t, strings.Join(a.Text, "\n"), "left out")
	require.True(t, proto.Equal(before, in.Snapshot), "the snapshot is not changed")
	for _, side := range a.Sides {
		require.Equal(t, "chain", side.Result.Pipelines[0].Name)
		require.Positive(t, side.Result.Pipelines[0].Good)
		require.Equal(t, side.Result.Pipelines[0].Arrivals, side.Result.Total.Arrivals)
	}
	var page bytes.Buffer
	require.NoError(t, a.Page(in).HTML(&page))
	require.True(t, strings.Contains(page.String(), `title="chain"`), "its row")

	// The SLO is end to end: 25.5 ms are never within 24, whatever the SLOs of the models.
	in.Snapshot = chained(3, 60, 24*time.Millisecond)
	a, err = advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.Zero(t, a.Triton.Rate)
	require.Zero(t, a.Conch.Rate)
}

// TestDirectRequestsOfAStepsModel come beside those of the ensemble, each once.
func TestDirectRequestsOfAStepsModel(t *testing.T) {
	s := chained(3, 50, 150*time.Millisecond)
	s.Models[1].Rate, s.Models[1].RowRate = s.Models[1].Rate+45, s.Models[1].RowRate+45
	a, err := advise.Make(t.Context(), advise.Input{Snapshot: s, Seeds: []uint64{1}, Compare: true})
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)
	require.InDelta(t, 95, a.Rate, 1e-6)
	for _, side := range a.Sides {
		require.InEpsilon(t, 50, side.Result.Pipelines[0].Rate, .15)
		for _, m := range side.Result.Models {
			if m.Name == "network" {
				require.InEpsilon(t, 45, m.Rate, .15)
			} else {
				require.Zero(t, m.Arrivals, m.Name)
			}
		}
	}
}

func TestAnEnsembleOfWhichTooLittleIsKnown(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*policy.Snapshot)
		want   string
	}{
		{"a step's model without a profile", func(s *policy.Snapshot) { s.Profiles[1].Usable = false }, "chain: of its step network, how long its batches take is not known"},
		{"models apart", func(s *policy.Snapshot) { s.Current.Partitions[0].Instances = s.Current.Partitions[0].Instances[1:] }, "chain: no GPU has the models of all its steps."},
		{"little arrived", func(s *policy.Snapshot) { proto.Reset(s); proto.Merge(s, chained(1, 2, time.Second)) }, "chain: 10 requests; 200 are the least"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := chained(1, 60, time.Second)
			c.change(s)
			a, err := advise.Make(t.Context(), advise.Input{Snapshot: s, Seeds: []uint64{1}})
			require.NoError(t, err)
			require.False(t, a.Enough)
			require.Contains(t, strings.Join(a.Text, "\n"), c.want)
		})
	}
}

// TestARecordingOfAnEnsemble is advised from and replayed: of it, the steps' models stay, although nobody asked for them by their names.
func TestARecordingOfAnEnsemble(t *testing.T) {
	var file bytes.Buffer
	w, err := workload.NewWriter(&file, workload.Header{})
	require.NoError(t, err)
	n, err := w.Model(workload.TraceModel{Name: "chain", SLO: 150 * time.Millisecond})
	require.NoError(t, err)
	for i := range 1500 {
		require.NoError(t, w.Write(workload.Arrival{At: time.Duration(i) * 20 * time.Millisecond, Model: n, Rows: 1}))
	}
	require.NoError(t, w.Flush())
	traffic, err := advise.ReadTraffic(bytes.NewReader(file.Bytes()))
	require.NoError(t, err)
	s := chained(3, 50, 150*time.Millisecond)
	a, err := advise.Make(t.Context(), advise.Input{Snapshot: s, Seeds: []uint64{1}, Traffic: traffic})
	require.NoError(t, err)
	require.True(t, a.Enough, a.Text)
	require.InEpsilon(t, 50, a.Rate, .01)
	require.Greater(t, a.Conch.Rate, a.Triton.Rate)

	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(s)
	require.NoError(t, err)
	trace := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(trace, file.Bytes(), 0o600))
	replay := func(names ...string) (*scenario.Scenario, error) {
		wanted := map[string]bool{}
		for _, name := range names {
			wanted[name] = true
		}
		left, err := advise.Only(raw, wanted)
		require.NoError(t, err)
		require.True(t, json.Valid(left))
		return scenario.FromSnapshot(left, &scenario.Trace{File: trace, Format: "conch"})
	}
	replayed, err := replay("chain")
	require.NoError(t, err)
	r, err := replayed.Run(t.Context(), scenario.Options{})
	require.NoError(t, err)
	require.EqualValues(t, 1500, r.Pipelines[0].Arrivals)
	require.EqualValues(t, 1500, r.Pipelines[0].Good)
	require.EqualValues(t, 1500, r.Total.Arrivals)

	// A recording of a model alone takes no ensemble along.
	left, err := advise.Only(raw, map[string]bool{"network": true})
	require.NoError(t, err)
	var alone policy.Snapshot
	require.NoError(t, protojson.Unmarshal(left, &alone))
	require.Empty(t, alone.GetPipelines())
	require.Len(t, alone.GetModels(), 1)
	require.Zero(t, alone.GetModels()[0].GetRate(), "what the ensemble asked of it")
}
