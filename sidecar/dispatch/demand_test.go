// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// cold is a table in which m loads on demand and is not loaded.
func cold(revision uint64, parts ...*triton) *router.Table {
	t := table(revision, func(m *router.Model) { m.OnDemand, m.Cold, m.Places = true, true, nil }, parts...)
	return t
}

// warm is a table in which m loads on demand and is loaded.
func warm(revision uint64, parts ...*triton) *router.Table {
	return table(revision, func(m *router.Model) { m.OnDemand = true }, parts...)
}

// asked collects the models that requests begin to wait for.
type asked chan string

func (a asked) begun(model string) { a <- model }

// await waits until so many requests are under way for m.
func await(t *testing.T, d *dispatch.Dispatcher, n int) {
	t.Helper()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.UnderWay == n }, 30*time.Second, time.Millisecond)
}

// TestAHerdWaitsForOneLoad: many requests for a model that is not loaded begin one load, wait, and are answered once the model is loaded.
func TestAHerdWaitsForOneLoad(t *testing.T) {
	p, wanted := newTriton(t), make(asked, 100)
	d, seen := newDispatcher(t, dispatch.Options{LoadWanted: wanted.begun}, cold(1, p))
	errs := make(chan []error, 1)
	go func() { errs <- atOnce(50, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1, nil) }) }()
	await(t, d, 50)
	require.Equal(t, []string{"m"}, d.Wanted())
	require.NoError(t, d.Swap(t.Context(), cold(2, p)), "a table of other things lets them wait on")
	require.Empty(t, p.executions())

	require.NoError(t, d.Swap(t.Context(), warm(3, p)))
	for _, err := range <-errs {
		require.NoError(t, err)
	}
	require.Len(t, wanted, 1)
	require.Empty(t, d.Wanted())
	require.NoError(t, infer(t.Context(), t, d, 51, 1, nil))
	require.Equal(t, map[dispatch.Result]int{dispatch.Cold: 50, dispatch.OK: 1}, resultsInTime(seen.count(t)))
	require.EqualValues(t, 51, d.VersionCounts("m")[0].Success)
	counts, _ := d.Counts("m")
	require.Zero(t, counts.UnderWay)
	for _, o := range seen.outcomes {
		require.Equal(t, o.Result == dispatch.Cold, o.Loading > 0)
		require.LessOrEqual(t, o.Loading, o.Queued)
	}
}

// TestTheSLOBeginsWithTheLoad: late requests are dropped, but the time of the load does not make a request late.
func TestTheSLOBeginsWithTheLoad(t *testing.T) {
	p, clock := newTriton(t), newMovableClock()
	d, seen := newDispatcher(t, dispatch.Options{Clock: clock}, nil)
	dropLate := func(table *router.Table) *router.Table {
		table.Models["m"].Late = policy.LatePolicy_LATE_POLICY_DROP
		table.Models["m"].SLO = 5 * time.Second
		return table
	}
	d.SetProfile(linear(time.Millisecond, time.Millisecond))
	require.NoError(t, d.Swap(t.Context(), dropLate(cold(1, p))))
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 1, 1, nil) }()
	await(t, d, 1)
	clock.move(10 * time.Second)
	require.NoError(t, d.Swap(t.Context(), dropLate(warm(2, p))))
	require.NoError(t, <-result)
	require.Equal(t, map[dispatch.Result]int{dispatch.Cold: 1}, seen.count(t))
}

// TestLoadsAreWaitedForWithinBounds: a request that cannot wait, or not any
// longer, gets an error with the reason.
func TestLoadsAreWaitedForWithinBounds(t *testing.T) {
	timeout := func(us int64) func(*tritonpb.ModelInferRequest) {
		return func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: us}}}
		}
	}
	for name, test := range map[string]struct {
		options dispatch.Options
		ctx     func(context.Context) (context.Context, context.CancelFunc)
		change  func(*tritonpb.ModelInferRequest)
		then    func(t *testing.T, d *dispatch.Dispatcher, p *triton)
		code    codes.Code
		text    string
		result  dispatch.Result
		reason  string
	}{
		"nobody loads it in time": {
			options: dispatch.Options{LoadWait: 20 * time.Millisecond},
			code:    codes.Unavailable, text: "waited 20ms for it to be loaded", result: dispatch.Refused, reason: "load_timeout",
		},
		"its timeout is over": {
			change: timeout(20_000), code: codes.Unavailable, text: "Request timeout expired", result: dispatch.Dropped, reason: "load_timeout",
		},
		"its deadline is over": {
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 20*time.Millisecond)
			},
			code: codes.DeadlineExceeded, text: "deadline exceeded", result: dispatch.Cancelled, reason: dispatch.GoneDeadline,
		},
		"it is refused": {
			then: func(_ *testing.T, d *dispatch.Dispatcher, _ *triton) { d.FailLoad("m", "0/1 partitions: 1 memory") },
			code: codes.Unavailable, text: "model 'm', which cannot be loaded now: 0/1 partitions: 1 memory", result: dispatch.Refused, reason: "load_denied",
		},
		"the model is unloaded": {
			then: func(t *testing.T, d *dispatch.Dispatcher, p *triton) {
				gone := cold(2, p)
				gone.Models, gone.Absent = map[string]*router.Model{}, map[string][]string{"m": {"1"}}
				require.NoError(t, d.Swap(t.Context(), gone))
			},
			code: codes.NotFound, text: "'m' has no available versions", result: dispatch.Refused, reason: "unloaded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			d, seen := newDispatcher(t, test.options, cold(1, p))
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if test.ctx != nil {
				ctx, cancel = test.ctx(ctx)
			}
			defer cancel()
			result := make(chan error, 1)
			go func() { result <- infer(ctx, t, d, 1, 1, test.change) }()
			if test.then != nil {
				await(t, d, 1)
				require.Eventually(t, func() bool {
					test.then(t, d, p) // it may be a moment before it waits
					return len(result) == 1
				}, 30*time.Second, time.Millisecond)
			}
			err := <-result
			requireCode(t, test.code, err)
			require.ErrorContains(t, err, test.text)
			require.Equal(t, map[dispatch.Result]int{test.result: 1}, seen.count(t))
			require.Equal(t, test.reason, seen.outcomes[0].Reason)
			require.Empty(t, d.Wanted())
		})
	}
}

// TestSoManyMayWaitForLoads and no more; a later request may wait when there is
// room again.
func TestSoManyMayWaitForLoads(t *testing.T) {
	p := newTriton(t)
	wanted := make(asked, 10)
	d, seen := newDispatcher(t, dispatch.Options{MaxLoadWaiters: 1, LoadWanted: wanted.begun}, cold(1, p))
	first := make(chan error, 1)
	go func() { first <- infer(t.Context(), t, d, 1, 1, nil) }()
	require.Equal(t, "m", <-wanted)
	err := infer(t.Context(), t, d, 2, 1, nil)
	requireCode(t, codes.Unavailable, err)
	require.ErrorContains(t, err, "1 requests wait for models already (demand.requests)")
	d.FailLoad("m", "there is no room")
	requireCode(t, codes.Unavailable, <-first)

	go func() { first <- infer(t.Context(), t, d, 3, 1, nil) }()
	require.Equal(t, "m", <-wanted, "each time that requests begin to wait")
	require.NoError(t, d.Swap(t.Context(), warm(2, p)))
	require.NoError(t, <-first)
	require.Equal(t, map[dispatch.Result]int{dispatch.Cold: 1, dispatch.Refused: 2}, seen.count(t))
}

// TestWhatWasQueuedWhenItsModelLeftIsWanted: a model that is unloaded while accepted requests for it wait is wanted again.
func TestWhatWasQueuedWhenItsModelLeftIsWanted(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, _ := newDispatcher(t, dispatch.Options{}, warm(1, p))
	errs := make(chan error, 2)
	go func() { errs <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	go func() { errs <- infer(t.Context(), t, d, 2, 1, nil) }() // behind the first
	await(t, d, 2)
	require.NoError(t, d.Swap(t.Context(), cold(2, p)))
	require.Equal(t, []string{"m"}, d.Wanted())
	close(p.hold)
	require.NoError(t, <-errs)
	require.NoError(t, d.Swap(t.Context(), warm(3, p)))
	require.NoError(t, <-errs)
}

// TestASequenceWaitsForALoad: its steps on a stream reach the model in their order.
func TestASequenceWaitsForALoad(t *testing.T) {
	p := newTriton(t)
	d, _, client := streamed(t, dispatch.Options{}, cold(1, p))
	var steps []*tritonpb.ModelInferRequest
	var ids []string
	for i := range 40 {
		ids = append(ids, fmt.Sprint("step", i))
		m := message(ids[i], 1, 1)
		inSequence("s", i == 0)(m)
		steps = append(steps, m)
	}
	s := openStream(t.Context(), t, client, steps...)
	await(t, d, len(steps))
	require.NoError(t, d.Swap(t.Context(), warm(2, p)))
	require.Len(t, lines(t, s), len(steps))
	require.Equal(t, ids, p.seen)
}

// TestAStepThatWaitsInVainLetsNoOtherOvertake: of two steps of a sequence that wait for a load the second gives up. A third begins after the first nevertheless.
func TestAStepThatWaitsInVainLetsNoOtherOvertake(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 3)
	d, seen, client := streamed(t, dispatch.Options{}, cold(1, p))
	step := func(id string, start bool, timeout int64) *tritonpb.ModelInferRequest {
		m := message(id, 1, 1)
		inSequence("s", start)(m)
		if timeout > 0 {
			m.Parameters["timeout"] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: timeout}}
		}
		return m
	}
	s := openStream(t.Context(), t, client, step("1", true, 0), step("2", false, 1000))
	require.Eventually(t, func() bool { seen.mu.Lock(); defer seen.mu.Unlock(); return len(seen.outcomes) == 1 }, 30*time.Second, time.Millisecond)
	require.NoError(t, s.Send(step("3", false, 0)))
	await(t, d, 2)
	require.NoError(t, d.Swap(t.Context(), warm(2, p)))
	require.Equal(t, "1", <-p.started)
	require.Never(t, func() bool { return len(p.started) > 0 }, 50*time.Millisecond, time.Millisecond)
	close(p.hold)
	answers := lines(t, s)
	require.Len(t, answers, 3)
	require.Contains(t, answers[1], "Request timeout expired")
	require.Equal(t, []string{"1", "3"}, p.seen)
}

// TestStreamsAndProxiesWaitForLoads as single requests do, in their order.
func TestStreamsAndProxiesWaitForLoads(t *testing.T) {
	p := newTriton(t)
	routes := cold(1, p)
	d, seen, client := streamed(t, dispatch.Options{}, routes)
	s := openStream(t.Context(), t, client, message("a", 1, 1), aside("b"), message("c", 1, 1))
	picked := make(chan error, 1)
	go func() {
		on, done, err := d.Pick(t.Context(), "m")
		if err == nil {
			require.Equal(t, p.address, on.Endpoint.GRPC)
			done(nil)
		}
		picked <- err
	}()
	await(t, d, 4)
	require.NoError(t, d.Swap(t.Context(), warm(2, p)))
	require.NoError(t, <-picked)
	answers := lines(t, s)
	require.Len(t, answers, 3)
	for i, id := range []string{"a", "b", "c"} {
		require.Regexp(t, "^"+id+`\|.*\|true\|$`, answers[i], "its last answer, and no error")
	}
	require.Equal(t, map[dispatch.Result]int{dispatch.Cold: 4}, seen.count(t))
	await(t, d, 0)
}
