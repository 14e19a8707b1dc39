// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

func TestSchedulerFaultFallsBackToForwarding(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	results := make(chan error, 3)
	go func() { results <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	go func() { results <- infer(t.Context(), t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	dispatch.BreakScheduler(d)
	go func() { results <- infer(t.Context(), t, d, 3, 1, nil) }()
	<-p.started
	<-p.started
	close(p.hold)
	for range 3 {
		require.NoError(t, <-results)
	}
	require.NoError(t, infer(t.Context(), t, d, 4, 1, nil))
	require.Equal(t, 4, resultsInTime(seen.count(t))[dispatch.OK])
}

// TestWithoutASchedulerTheRestGoesOn: after its fault tables are swapped, partitions go down and up, and callers may cancel. Fault returns the
// error.
func TestWithoutASchedulerTheRestGoesOn(t *testing.T) {
	p, other := newTriton(t), newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	require.NoError(t, d.Fault())
	ctx, cancel := context.WithCancel(t.Context())
	runs, waits := make(chan error, 1), make(chan error, 1)
	go func() { runs <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	go func() { waits <- infer(ctx, t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	dispatch.BreakScheduler(d)
	d.SetProfile(linear(time.Millisecond, time.Millisecond)) // and it is noticed
	require.ErrorContains(t, d.Fault(), "the scheduler failed")
	require.Equal(t, "id2", <-p.started, "what waited is forwarded")
	cancel()
	requireCode(t, codes.Canceled, <-waits)

	require.NoError(t, d.Swap(t.Context(), table(2, nil, other)))
	require.EqualValues(t, 2, d.Routes().Revision)
	require.NoError(t, infer(t.Context(), t, d, 3, 1, nil))
	require.Equal(t, []string{"id3"}, other.seen)
	drained := d.Drained("p"+p.address, "")
	close(p.hold)
	require.NoError(t, <-runs)
	<-drained

	d.SetPartitionState("p"+other.address, false, "restarting")
	require.False(t, d.Partitions()[0].Up)
	d.SetPartitionState("p"+other.address, true, "")
	require.NoError(t, infer(t.Context(), t, d, 4, 1, nil))
	require.Equal(t, 3, resultsInTime(seen.count(t))[dispatch.OK])
	require.NoError(t, d.Drain(t.Context()))
}

// TestASchedulerFaultLeavesNobodyWaitingInAMergeGroup: requests that waited are forwarded, and do not count as waiting any more.
func TestASchedulerFaultLeavesNobodyWaitingInAMergeGroup(t *testing.T) {
	waiting := func(d *dispatch.Dispatcher) (n int) {
		for _, member := range members {
			c, _ := d.Counts(member)
			n += c.Waiting
		}
		return n
	}
	t.Run("in the queue", func(t *testing.T) {
		p := newTriton(t)
		p.hold, p.started = make(chan struct{}), make(chan string, 10)
		d, seen := newDispatcher(t, dispatch.Options{}, merged(1, p))
		results := make(chan error, 3)
		go func() { results <- infer(t.Context(), t, d, 1, 1, of(0)) }()
		<-p.started
		for i := range members {
			go func() { results <- infer(t.Context(), t, d, 2, 1, of(i)) }()
		}
		require.Eventually(t, func() bool { return waiting(d) == 2 }, 30*time.Second, time.Millisecond)
		dispatch.BreakScheduler(d)
		d.SetProfile(linear(time.Millisecond, time.Millisecond)) // and it is noticed
		close(p.hold)
		for range 3 {
			require.NoError(t, <-results)
		}
		require.Zero(t, waiting(d))
		require.Equal(t, map[dispatch.Result]int{dispatch.OK: 3}, resultsInTime(seen.count(t)))
	})
	for name, failure := range map[string]error{
		"after a failure": status.Error(codes.Internal, "Failed to process the request(s) for model instance 'g_0', message: RuntimeError"),
		"after a loss":    status.Error(codes.NotFound, "Request for unknown model: 'g' is not found"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			var d *dispatch.Dispatcher
			var once sync.Once
			p.refuse = func(*tritonpb.ModelInferRequest) (err error) {
				once.Do(func() { dispatch.BreakRequeue(d, "g"); err = failure })
				return err
			}
			var seen *recorder
			d, seen = newDispatcher(t, dispatch.Options{}, merged(1, p))
			require.NoError(t, infer(t.Context(), t, d, 1, 1, of(0)))
			require.Error(t, d.Fault())
			require.Zero(t, waiting(d))
			require.Equal(t, map[dispatch.Result]int{dispatch.OK: 1}, resultsInTime(seen.count(t)))
		})
	}
}

// TestASchedulerFaultGivesNoFurtherAttempt: a request is lost, the scheduler fails when it is queued again, and the request is lost once more where it is forwarded to. It was sent
// twice, and no server gets it a third time.
func TestASchedulerFaultGivesNoFurtherAttempt(t *testing.T) {
	a, b := newTriton(t), newTriton(t)
	for _, p := range []*triton{a, b} {
		p.hold, p.started = make(chan struct{}), make(chan string, 10)
	}
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, a, b))
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-a.started
	dispatch.BreakRequeue(d, "m")
	a.kill()
	<-b.started
	require.Error(t, d.Fault())
	a.set(func() { a.hold = nil })
	a.restart()
	b.kill()
	requireCode(t, codes.Unavailable, <-result)
	require.Len(t, a.executions(), 1)
	require.Len(t, b.executions(), 1)
	require.True(t, seen.outcomes[0].Retried)
}

// TestAPanicAnswersItsRequest with an error, and the process goes on.
func TestAPanicAnswersItsRequest(t *testing.T) {
	p := newTriton(t)
	d, _, client := streamed(t, dispatch.Options{Recorder: faulty{}}, table(1, nil, p))
	_, err := client.ModelInfer(t.Context(), message("a", 1, 1))
	requireCode(t, codes.Internal, err)
	s, err := client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(message("b", 1, 1)))
	_, err = s.Recv()
	requireCode(t, codes.Internal, err)
	n, bytes := d.UnderWay()
	require.Zero(t, n)
	require.Zero(t, bytes)
}

// TestAPanicOnAStreamLeavesNothingUnderWay: neither of the limits nor of the model.
func TestAPanicOnAStreamLeavesNothingUnderWay(t *testing.T) {
	d, _, client := streamed(t, dispatch.Options{Regions: faulty{}}, table(1, nil, newTriton(t)))
	m := message("a", 1, 1)
	m.RawInputContents = nil
	m.Inputs[0].Parameters = map[string]*tritonpb.InferParameter{
		"shared_memory_region":    {ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: "r"}},
		"shared_memory_byte_size": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 16}},
	}
	_, err := openStream(t.Context(), t, client, m).Recv()
	requireCode(t, codes.Internal, err)
	n, bytes := d.UnderWay()
	require.Zero(t, n)
	require.Zero(t, bytes)
	await(t, d, 0)
}

// faulty is a Recorder that panics for each request, and Regions that panic.
type faulty struct{}

func (faulty) Missing(string, uint64, uint64) bool { panic("a fault") }

func (faulty) Recording() bool         { return true }
func (faulty) Record(dispatch.Arrival) { panic("a fault") }

// TestAnObserverThatPanicsCostsNobodyAnything: requests are answered, and what they held is released, by each way through the dispatcher.
func TestAnObserverThatPanicsCostsNobodyAnything(t *testing.T) {
	for name, c := range map[string]struct {
		table  func(uint64, *triton, ...string) *router.Table
		change func(*tritonpb.ModelInferRequest)
		loads  bool
		fails  bool
	}{
		"queued":                 {table: apps, change: forName("fast")},
		"passed through":         {table: apps, change: both(forName("fast"), outside)},
		"of an app":              {table: apps, change: forName("a")},
		"decoupled":              {table: decoupledApps, change: forName("fast")},
		"on demand":              {table: apps, change: forName("fast"), loads: true},
		"decoupled, on demand":   {table: decoupledApps, change: forName("fast"), loads: true},
		"of nobody":              {table: apps, change: forName("made up"), fails: true},
		"what nobody can fulfil": {table: apps, change: both(forName("a"), wish("accuracy", .99)), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, wanted := newTriton(t), make(asked, 10)
			routes := c.table(1, p, "fast")
			if c.loads {
				routes.Models["fast"].OnDemand, routes.Models["fast"].Cold, routes.Models["fast"].Places = true, true, nil
			}
			d := dispatch.New(dispatch.Options{Observer: blind{}, LoadWanted: wanted.begun})
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			require.NoError(t, d.Swap(t.Context(), routes))
			address, _ := fronts(t, d, routes)
			client := tritonpb.NewGRPCInferenceServiceClient(dialTo(t, address))
			s := openStream(t.Context(), t, client, asking("1", c.change), asking("2", c.change))
			if c.loads {
				<-wanted
				warm := c.table(2, p, "fast")
				warm.Models["fast"].OnDemand = true
				require.NoError(t, d.Swap(t.Context(), warm))
			}
			answers := 0
			for _, line := range lines(t, s) {
				require.Equal(t, c.fails, !strings.HasSuffix(line, "|"), line)
				answers++
			}
			require.Positive(t, answers)
			if c.table(1, p, "fast").Models["fast"].Config.GetModelTransactionPolicy() == nil {
				_, err := client.ModelInfer(t.Context(), asking("3", c.change))
				require.Equal(t, c.fails, err != nil, "%v", err)
			}
			n, bytes := d.UnderWay()
			require.Zero(t, n)
			require.Zero(t, bytes)
		})
	}
}

// blind is an Observer whose methods all panic.
type blind struct{}

func (blind) Arrived(string, int, time.Time)    { panic("a fault") }
func (blind) Asked(dispatch.Asked)              { panic("a fault") }
func (blind) Executed(dispatch.Execution)       { panic("a fault") }
func (blind) Busy(string, time.Time, time.Time) { panic("a fault") }
func (blind) Finished(dispatch.Outcome)         { panic("a fault") }
func (blind) Walked(dispatch.Walk)              { panic("a fault") }
