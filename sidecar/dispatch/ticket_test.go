// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// TestATimeoutEndsEveryWait: a request's own timeout ends its wait for a partition of its model, outside the queue.
func TestATimeoutEndsEveryWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d, seen := newDispatcher(t, dispatch.Options{Clock: clock.Timers(), OutageWait: 3 * time.Second}, table(1, func(m *router.Model) { m.Batchable = false }, &triton{address: "127.0.0.1:1"}))
		d.SetPartitionState("p127.0.0.1:1", false, "its server is to come")
		began := time.Now()
		err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}},
				"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 50_000}}}
		})
		requireCode(t, codes.Unavailable, err)
		require.ErrorContains(t, err, "Request timeout expired")
		require.Equal(t, 50*time.Millisecond, time.Since(began))
		require.Equal(t, map[dispatch.Result]int{dispatch.Dropped: 1}, seen.count(t))
		require.Equal(t, "timeout", seen.outcomes[0].Reason)
	})
}

// ofTimeout is a request's own timeout.
func ofTimeout(timeout time.Duration) func(*tritonpb.ModelInferRequest) {
	return func(m *tritonpb.ModelInferRequest) {
		m.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: timeout.Microseconds()}}}
	}
}

// TestATimeoutEndsTheWaitForAPlace of a queued request, also where its model has no SLO, and where the model had a place when the request was queued. One that has no
// timeout waits on, and so does one whose model has a place.
func TestATimeoutEndsTheWaitForAPlace(t *testing.T) {
	const timeout, outage = 50 * time.Millisecond, 3 * time.Second
	for name, slo := range map[string]time.Duration{"with an SLO": 20 * time.Millisecond, "without": 0} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, o := inBubble(t, 1)
				p, id := parts[0], "p"+parts[0].address
				p.hold = make(chan struct{})
				o.OutageWait = outage
				d, seen := newDispatcher(t, o, table(1, func(m *router.Model) { m.SLO = slo }, p))
				var all sync.WaitGroup
				send := func(seed uint32, change func(*tritonpb.ModelInferRequest), want error, after time.Duration) {
					began := time.Now()
					all.Go(func() {
						err := infer(t.Context(), t, d, seed, 1, change)
						require.Equal(t, status.Code(want), status.Code(err), "%v", err)
						if want != nil {
							require.ErrorContains(t, err, status.Convert(want).Message())
						}
						require.Equal(t, after, time.Since(began), "request %d", seed)
					})
					synctest.Wait()
				}
				expired, out := status.Error(codes.Unavailable, "Request timeout expired"), status.Error(codes.Unavailable, "no partition that serves model 'm' is up")

				send(1, nil, out, 100*time.Millisecond+outage)             // it is executed, and lost
				send(2, ofTimeout(timeout), expired, 100*time.Millisecond) // it waits for its turn until there is no place
				send(3, ofTimeout(2*timeout+20*time.Millisecond), expired, 2*timeout+20*time.Millisecond)
				time.Sleep(100 * time.Millisecond)
				d.SetPartitionState(id, false, "a test")
				send(4, ofTimeout(timeout), expired, timeout)
				send(5, nil, out, outage)
				send(6, ofTimeout(time.Minute), out, outage)
				all.Wait()

				p.set(func() { p.hold = nil })
				d.SetPartitionState(id, true, "")
				send(7, ofTimeout(timeout), nil, 0)
				d.SetPartitionState(id, false, "a test")
				send(8, ofTimeout(timeout), nil, 30*time.Millisecond)
				time.Sleep(30 * time.Millisecond)
				d.SetPartitionState(id, true, "")
				all.Wait()
				for _, o := range seen.outcomes {
					if o.Result == dispatch.Dropped {
						require.Equal(t, "timeout", o.Reason)
					}
				}
				require.Equal(t, 3, seen.count(t)[dispatch.Dropped])
			})
		})
	}
}

// TestATimeoutEndsTheWaitForAPlaceOfWhatWasLost: requests that are queued again, since their only place was lost under them, wait for one as any other: until their
// own timeout, which may have passed.
func TestATimeoutEndsTheWaitForAPlaceOfWhatWasLost(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"passed": 50 * time.Millisecond, "not yet": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, o := inBubble(t, 1)
				parts[0].hold = make(chan struct{})
				o.OutageWait = 3 * time.Second
				d, _ := newDispatcher(t, o, table(1, nil, parts...))
				began, outage := time.Now(), 100*time.Millisecond
				var all sync.WaitGroup
				all.Go(func() {
					requireCode(t, codes.Unavailable, infer(t.Context(), t, d, 1, 1, ofTimeout(timeout)))
					require.InDelta(t, max(timeout, outage), time.Since(began), float64(10*time.Millisecond))
				})
				time.Sleep(outage)
				require.Len(t, parts[0].executions(), 1)
				parts[0].kill()
				d.SetPartitionState("p"+parts[0].address, false, "a test")
				all.Wait()
			})
		})
	}
}

// TestWaitsDoNotAddUp: a request that has waited for its model's load waits for a partition of it only as long as the load could have taken.
func TestWaitsDoNotAddUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &triton{address: "127.0.0.1:1"}
		cold := table(1, func(m *router.Model) { m.OnDemand, m.Cold, m.Places, m.Batchable = true, true, nil, false }, p)
		d, seen := newDispatcher(t, dispatch.Options{Clock: clock.Timers(), LoadWait: 10 * time.Second}, cold)
		d.SetPartitionState("p127.0.0.1:1", false, "its server is to come")
		began := time.Now()
		time.AfterFunc(8*time.Second, func() {
			loaded := table(2, func(m *router.Model) { m.OnDemand, m.Batchable = true, false }, p)
			require.NoError(t, d.Swap(t.Context(), loaded))
		})
		err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}}}
		})
		requireCode(t, codes.Unavailable, err)
		require.ErrorContains(t, err, "no partition that serves model 'm' is up")
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Equal(t, map[dispatch.Result]int{dispatch.Failed: 1}, seen.count(t))
	})
}
