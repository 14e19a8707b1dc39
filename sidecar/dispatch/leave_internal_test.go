// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// belated is a clock that a test sets, with an alarm that never rings: as one that rings late.
type belated struct {
	clock.Clock
	now time.Time
}

func (b *belated) Now() time.Time         { return b.now }
func (*belated) Alarm(func()) clock.Alarm { return silent{} }
func (silent) Set(time.Time)              {}
func (silent) Stop()                      {}

type silent struct{}

// TestWhoLeavesWhenTheQueueDecidesHasOneAnswer: a call's caller leaves after the moment at which the queue starts or drops the call, and before the alarm
// for that rings. So the queue decides while the caller leaves.
func TestWhoLeavesWhenTheQueueDecidesHasOneAnswer(t *testing.T) {
	const waits = 10 * time.Millisecond
	for name, c := range map[string]struct {
		down bool // nothing serves the model
		want Result
	}{
		"it is started": {want: Cancelled},
		"it is dropped": {down: true, want: Dropped},
	} {
		t.Run(name, func(t *testing.T) {
			at := &belated{Clock: clock.Timers(), now: time.Now()}
			d := New(Options{Clock: at})
			require.NoError(t, d.Swap(t.Context(), manyModels(1, 1, 1, func(_ int, m *router.Model) {
				m.SLO, m.Late = waits, policy.LatePolicy_LATE_POLICY_DROP
				m.Discipline, m.Parameters, m.DropPolicy = "timeout", map[string]string{"max_queue_delay": "1ms"}, "window"
			})))
			profile := &policy.Profile{Model: "m0", GpuType: "T", Usable: true}
			for b := uint32(1); b <= 8; b++ {
				profile.Points = append(profile.Points, &policy.ProfilePoint{Batch: b, ThreadPercentage: 100, LatencyUpperUs: 1000})
			}
			d.SetProfile(profile)
			d.SetPartitionState("p0", !c.down, "a test")
			route, err := d.route("m0")
			require.NoError(t, err)

			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var answers []Result
			of := d.newCall(ctx, &batch.Request{Model: "m0"})
			of.stop = func() bool { return true } // the test is the watch
			of.then = func(_ *wire.Turn, a answer) { answers = append(answers, a.result) }
			of.moveTo(route.model)
			of.executes, of.tally, of.rows, of.queued.Rows = route.executes, route.tallyOf(""), 1, 1
			of.setDue(route)
			d.enqueue(nil, of, route)
			require.True(t, of.is(queued))
			at.now = at.now.Add(2 * time.Millisecond)
			if c.down {
				at.now = at.now.Add(waits)
			}
			of.abandon()
			require.NoError(t, d.Close())
			require.Equal(t, []Result{c.want}, answers)
		})
	}
}
