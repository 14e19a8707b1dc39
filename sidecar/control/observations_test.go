// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/observe"
)

// TestPoliciesSeeEachInstance: what it did, whether it serves, and if not why.
func TestPoliciesSeeEachInstance(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.repository.hold(model("a", "d1", 8), model("failing", "bad", 4))
		r.reconciler.refuse = map[string]string{"failing": "bad"}
		defer r.start()()
		for range 50 {
			for gpu, rows := range map[string]int{"gpu0": 8, "gpu1": 2} {
				now := time.Now()
				r.recorder.Executed(observe.Execution{Model: "a", Partition: gpu, GPUType: "T4", ThreadPercentage: 100, Rows: rows, Requests: rows, Start: now.Add(-time.Duration(rows) * time.Millisecond), End: now})
			}
			pass(100 * time.Millisecond)
		}
		seen := func() map[string]*policy.InstanceObservation {
			s, err := r.Snapshot(t.Context())
			require.NoError(t, err)
			all := map[string]*policy.InstanceObservation{}
			for _, o := range s.GetObservations() {
				all[o.GetModel()+" on "+o.GetPartition()] = o
			}
			require.Len(t, all, 4)
			return all
		}
		all := seen()
		for place, rows := range map[string]float64{"a on gpu0": 8, "a on gpu1": 2} {
			o := all[place]
			require.True(t, o.GetReady(), place)
			require.Empty(t, o.GetCondition())
			require.InEpsilon(t, 10*rows, o.GetRowRate(), .05, place)
			require.InDelta(t, rows, o.GetMeanBatch(), 1e-9)
			require.InEpsilon(t, rows/100, o.GetBusyShare(), .05)
			require.InEpsilon(t, 1000*rows, o.GetLatencyP50Us(), .07)
		}
		require.False(t, all["failing on gpu0"].GetReady())
		require.Contains(t, all["failing on gpu0"].GetCondition(), "no module named torch")

		r.reconciler.setDown("gpu0", true)
		all = seen()
		require.False(t, all["a on gpu0"].GetReady())
		require.Equal(t, "killed", all["a on gpu0"].GetCondition())
		require.True(t, all["a on gpu1"].GetReady())
	})
}

// TestWhatIsDeclaredIsNotDisplaced: a few executions at the whole GPU teach nothing that could be planned with. The request path keeps what a file declares of the model until they do,
// and what it declares of other shares after that.
func TestWhatIsDeclaredIsNotDisplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "conch.yaml")
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "a.csv"), []byte("gpu_type,batch,thread_percentage,latency_us\nT4,1,100,10000\nT4,8,100,20000\nT4,1,50,20000\nT4,8,50,40000\n"), 0o600))
		r := newRig(t, "")
		require.NoError(t, os.WriteFile(file, []byte(base+"models: {a: {profiles: a.csv}}"), 0o600))
		declared, err := config.Load(file, nil, config.Environment{})
		require.NoError(t, err)
		r.repository.hold(model("a", "d1", 8))
		defer r.start()()
		require.NoError(t, r.Reload(t.Context(), declared))
		pass(time.Second)
		execute := func(rows, times int) {
			for range times {
				now := time.Now()
				r.recorder.Executed(observe.Execution{Model: "a", Partition: "gpu0", GPUType: "T4", ThreadPercentage: 100, Rows: rows, Start: now.Add(-30 * time.Millisecond), End: now})
				pass(500 * time.Millisecond)
			}
		}
		execute(8, 2)
		known := r.requests.profile("a")
		require.True(t, known.GetUsable())
		at := func(batch, share uint32) float64 {
			us, ok := known.Latency(batch, share)
			require.True(t, ok)
			return us
		}
		require.InDelta(t, 20_000, at(8, 100), 1)
		execute(8, 10)
		execute(1, 10)
		known = r.requests.profile("a")
		require.True(t, known.GetUsable())
		require.InEpsilon(t, 30_000, at(8, 100), .1)
		require.InEpsilon(t, 60_000, at(8, 50), .1, "as much longer as at the whole GPU")
	})
}

// TestALookIsOfOneMoment: a change during a look is in all of the look or in nothing of it.
func TestALookIsOfOneMoment(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.repository.hold(model("failing", "bad", 4))
		r.reconciler.refuse = map[string]string{"failing": "bad"}
		defer r.start()()
		pass(time.Second)
		r.reconciler.mu.Lock()
		r.reconciler.seen = func() { r.reconciler.refuse = nil }
		r.reconciler.mu.Unlock()
		m, err := r.LookAtModel("failing")
		require.NoError(t, err)
		require.NotEmpty(t, m.Places)
		require.False(t, m.Places[0].Serves("failing"))
		require.NotNil(t, m.Failing, "it serves nowhere because it fails")
	})
}
