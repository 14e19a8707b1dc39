// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// overlapping has a server execute b rows in fixed + b*each, one after the other but for the first part of each execution, which runs beside others.
func overlapping(p *triton, fixed, each, beside time.Duration, atOnce func(now int)) {
	turn := make(chan struct{}, 1)
	var counting sync.Mutex
	now := 0
	count := func(d int) {
		counting.Lock()
		defer counting.Unlock()
		now += d
		atOnce(now)
	}
	p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
		count(1)
		defer count(-1)
		time.Sleep(beside)
		turn <- struct{}{} // a mutex would stop the bubble's time
		defer func() { <-turn }()
		time.Sleep(fixed - beside + time.Duration(r.Inputs[0].Shape[0])*each)
	}
}

// expected is a profile with its upper latencies as those that are expected.
func expected(p *policy.Profile) *policy.Profile {
	for _, q := range p.Points {
		q.LatencyUs = &policy.Estimate{Value: q.LatencyUpperUs}
	}
	return p
}

// TestALeadUsesWhatOverlaps: with a lead a server whose executions overlap holds a load that it does not hold one batch at a time, and one whose executions take
// turns holds what it did. It never has more than two batches.
func TestALeadUsesWhatOverlaps(t *testing.T) {
	const fixed, each, slo = 8 * time.Millisecond, time.Millisecond, 60 * time.Millisecond
	for name, c := range map[string]struct {
		beside time.Duration
		load   float64 // of what one batch of eight at a time holds
		lead   bool
		least  float64 // of the requests in time
		most   float64
	}{
		"most of it overlaps, one at a time": {6 * time.Millisecond, 1.4, false, 0, .75},
		"most of it overlaps, with a lead":   {6 * time.Millisecond, 1.4, true, .85, 1},
		"nothing overlaps, one at a time":    {0, .9, false, .99, 1},
		"nothing overlaps, with a lead":      {0, .9, true, .99, 1},
		"nothing overlaps, little to do":     {0, .3, true, 1, 1},
		"most of it overlaps, little to do":  {6 * time.Millisecond, .3, true, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, options := inBubble(t, 1)
				most := 0
				overlapping(parts[0], fixed, each, c.beside, func(now int) { most = max(most, now) })
				options.Lead = c.lead
				d, seen := newDispatcher(t, options, beside(executing(table(1, func(m *router.Model) { m.SLO = slo }, parts...), 1), "other", 1))
				profile := expected(linear(each, fixed))
				d.SetProfile(profile)
				other := proto.CloneOf(profile)
				other.Model = "other"
				d.SetProfile(other)
				gap := time.Duration(float64(fixed+8*each) / 8 / c.load)
				var all sync.WaitGroup
				const n = 3000
				for i := range n {
					time.Sleep(gap)
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), slo)
						defer cancel()
						_ = infer(ctx, t, d, 1, 1, forModel([]string{"m", "other"}[i%2]))
					})
				}
				all.Wait()
				time.Sleep(slo) // a server goes on with what was cancelled
				synctest.Wait()
				results := seen.count(t)
				inTime := float64(results[dispatch.OK]) / n
				require.GreaterOrEqual(t, inTime, c.least, "%v", results)
				require.LessOrEqual(t, inTime, c.most, "%v", results)
				require.LessOrEqual(t, most, 2)
			})
		})
	}
}

// TestAHangWithALead: an execution that hangs is seen though the scheduler has its executor back, also when its partition has left the table, and its request is
// executed elsewhere.
func TestAHangWithALead(t *testing.T) {
	for name, leaves := range map[string]bool{"in the table": false, "off the table": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, options := inBubble(t, 2)
				sick, well := parts[0], parts[1]
				hung := make(chan string, 10)
				options.Lead, options.HangFloor, options.Hung = true, time.Second, func(partition string, _ error) { hung <- partition }
				d, _ := newDispatcher(t, options, table(1, nil, sick, well))
				d.SetProfile(expected(linear(0, 10*time.Millisecond)))
				sick.takes = 10 * time.Millisecond
				for range leadProbe - 1 {
					require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
				}
				hold := make(chan struct{})
				sick.set(func() { sick.hold = hold })
				var all sync.WaitGroup
				all.Go(func() { require.NoError(t, infer(t.Context(), t, d, 2, 1, nil)) })
				time.Sleep(100 * time.Millisecond)
				began := time.Now()
				if leaves { // with nothing that waits for the one that hangs
					require.NoError(t, d.Swap(t.Context(), table(2, nil, well)))
					all.Wait()
					require.Len(t, well.executions(), 1)
					require.Empty(t, hung)
				} else {
					all.Go(func() { require.NoError(t, infer(t.Context(), t, d, 3, 1, nil)) })
					time.Sleep(100 * time.Millisecond)
					require.Len(t, sick.executions(), leadProbe+1, "the next one was sent before the last one had ended")
					all.Wait()
					require.Len(t, well.executions(), 2)
					require.Equal(t, "p"+sick.address, <-hung)
				}
				require.Less(t, time.Since(began), time.Minute, "it was not found by the end of its connection")
				close(hold)
			})
		})
	}
}

// leadProbe is how often a lead is tried where there is none: see forecast.Lead.
const leadProbe = 8
