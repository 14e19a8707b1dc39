// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/observe"
)

// load answers requests of model a in virtual time, so many a second, of which a part is late, and keeps gpu0 busy for a part of it.
func (r *rig) load(length time.Duration, perSecond, late int, busy float64) {
	for range int(length / time.Second) {
		pass(time.Second)
		now := time.Now()
		for i := range perSecond {
			result := observe.OK
			if i < late {
				result = observe.Late
			}
			r.recorder.Arrived("a", 1, now)
			r.recorder.Finished(observe.Outcome{Model: "a", Result: result, Latency: time.Millisecond, At: now})
		}
		r.recorder.Busy("gpu0", now.Add(-time.Duration(busy*1e9)), now)
	}
}

// TestGPUAdvice: what the load says of the number of GPUs reaches policies and operators, in every mode.
func TestGPUAdvice(t *testing.T) {
	for _, mode := range []string{"control", "advise", "observe"} {
		t.Run(mode, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "mode: "+mode)
				stop := r.start()
				defer stop()
				require.Nil(t, r.GPUAdvice().Advice)
				pass(20 * time.Second)
				require.Nil(t, r.GPUAdvice().Advice, "nobody asked for anything")
				require.Len(t, r.GPUAdvice().Serving, 2)

				r.load(30*time.Second, 100, 50, 1)
				a := r.GPUAdvice()
				require.Equal(t, 2.0, a.GetAllocateGpus(), a.GetReason())
				require.InDelta(t, .5, a.GetBadRate(), .01)

				r.load(90*time.Second, 100, 0, .4)
				a = r.GPUAdvice()
				require.Equal(t, 1.0, a.GetReleaseGpus(), a.GetReason())
				require.Equal(t, []string{"gpu1"}, a.GetRelease())
				require.InDelta(t, .6, a.Serving[0].IdleShare, .1, "batches fall into windows whole")
				require.Equal(t, 1.0, a.Serving[1].IdleShare)
				s, err := r.Snapshot(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1.0, s.GetStatistics().GetAdvice().GetReleaseGpus())

				// A GPU that is down is none: what was measured with it does not count.
				r.reconciler.setDown("gpu1", true)
				r.load(10*time.Second, 100, 0, .4)
				a = r.GPUAdvice()
				require.Zero(t, a.GetReleaseGpus())
				require.EqualValues(t, 1, a.GetGpus())
			})
		})
	}
}

// TestGPUAdviceLeavesOutWhatNoGPUHelps: a model that is slower than its SLO is no reason for more GPUs. Most models of attached servers are
// slower than it where no SLO was configured.
func TestGPUAdviceLeavesOutWhatNoGPUHelps(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "defaults: {slo: 5ms}")
		stop := r.start()
		defer stop()
		r.recorder.Calibrated("a", "T4", 100, []observe.Sample{{Rows: 1, Duration: 4 * time.Millisecond}})
		r.load(30*time.Second, 100, 100, 1)
		require.Equal(t, 2.0, r.GPUAdvice().GetAllocateGpus(), "it could be in time")
		require.Empty(t, r.GPUAdvice().OutOfReach)

		r.recorder.Calibrated("a", "T4", 100, []observe.Sample{{Rows: 1, Duration: 6 * time.Millisecond}})
		r.load(90*time.Second, 100, 100, 1)
		require.Nil(t, r.GPUAdvice().Advice, "nothing else was asked for")
		require.Equal(t, []string{"a"}, r.GPUAdvice().OutOfReach)
	})
}

// TestGPUAdviceThreshold: what is tolerated is triggers.badRate.
func TestGPUAdviceThreshold(t *testing.T) {
	for rate, allocate := range map[float64]float64{.01: 1, .2: 0} {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, fmt.Sprintf("triggers: {badRate: %g}", rate))
			stop := r.start()
			defer stop()
			r.load(30*time.Second, 100, 10, 1)
			require.Equal(t, allocate, r.GPUAdvice().GetAllocateGpus(), r.GPUAdvice().GetReason())
		})
	}
}
