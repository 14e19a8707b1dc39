// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

func TestRequestsShareExecutions(t *testing.T) {
	p, d, results := oneRunsOneWaits(t)
	for i := range 7 {
		go func() { results <- infer(t.Context(), t, d, uint32(3+i), 1, nil) }()
	}
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 8 }, 30*time.Second, time.Millisecond)
	close(p.hold)
	for range 9 {
		require.NoError(t, <-results)
	}
	require.Equal(t, []int{1, 8}, p.executions(), "requests that wait together run together")
	require.NoError(t, d.Close()) // an execution is over a little after its answers
	counts := d.VersionCounts("m")[0]
	require.Equal(t, uint64(9), counts.Success)
	require.Equal(t, uint64(2), counts.Executions)
}

func TestWithoutProfileNothingWaits(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) { m.SLO = time.Hour }, p))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, infer(ctx, t, d, 1, 2, nil))
}

// TestOneBadRequestFailsAlone: the requests that share a batch with it get their
// answers.
func TestOneBadRequestFailsAlone(t *testing.T) {
	p := newTriton(t)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		for i := 0; i < len(r.RawInputContents[0]); i += 16 {
			if r.RawInputContents[0][i] == 3 {
				return status.Error(codes.InvalidArgument, "no threes")
			}
		}
		return nil
	}
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	d.SetProfile(linear(time.Millisecond, 5*time.Millisecond))
	for i, err := range atOnce(6, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1, nil) }) {
		if i == 3 {
			requireCode(t, codes.InvalidArgument, err)
			require.Equal(t, "no threes", status.Convert(err).Message())
			continue
		}
		require.NoError(t, err)
	}
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 5, dispatch.Failed: 1}, resultsInTime(seen.count(t)))
}

func TestAnswersWithoutRowsEndBatching(t *testing.T) {
	p := newTriton(t)
	p.short = true
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	d.SetProfile(linear(time.Millisecond, 5*time.Millisecond))
	for range 2 {
		for _, err := range atOnce(4, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1, nil) }) {
			require.NoError(t, err)
		}
	}
	n := 0
	for _, rows := range p.executions() {
		if rows > 1 {
			n++
		}
	}
	require.LessOrEqual(t, n, 1, "after the first answer that cannot be split nothing is batched")
}

func TestLostPartitionIsRetriedElsewhere(t *testing.T) {
	a, b := newTriton(t), newTriton(t)
	a.hold, a.started = make(chan struct{}), make(chan string, 10)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, a, b))
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 7, 1, nil) }()
	<-a.started // rank 0 comes first
	a.kill()
	require.NoError(t, <-result)
	require.Equal(t, []int{1}, b.executions())
	seen.count(t)
	require.True(t, seen.outcomes[0].Retried)

	states := d.Partitions()
	require.False(t, states[0].Up)
	require.NotEmpty(t, states[0].Reason)

	// It is used again once it answers for its models.
	a.set(func() { a.hold, a.started, a.loading = nil, nil, true })
	a.restart()
	time.Sleep(100 * time.Millisecond)
	require.False(t, d.Partitions()[0].Up, "its models are not loaded yet")
	a.set(func() { a.loading = false })
	require.Eventually(t, func() bool { return d.Partitions()[0].Up }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, infer(t.Context(), t, d, 8, 1, nil))
	require.Len(t, a.executions(), 2)
}

func TestOnlyPartitionLostIsWaitedFor(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	results := make(chan error, 2)
	go func() { results <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	go func() { results <- infer(t.Context(), t, d, 2, 1, nil) }()
	p.kill()
	p.set(func() { p.hold, p.started = nil, nil })
	p.restart()
	require.NoError(t, <-results)
	require.NoError(t, <-results)
}

func TestLostTwiceFails(t *testing.T) {
	a, b := newTriton(t), newTriton(t)
	a.hold, a.started = make(chan struct{}), make(chan string, 10)
	b.hold, b.started = make(chan struct{}), make(chan string, 10)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, a, b))
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 7, 1, nil) }()
	<-a.started
	a.kill()
	<-b.started
	b.kill()
	requireCode(t, codes.Unavailable, <-result)
}

func TestDriverDecidesWhoIsUp(t *testing.T) {
	a, b := newTriton(t), newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{OutageWait: 50 * time.Millisecond}, table(1, nil, a, b))
	d.SetPartitionState("p"+a.address, false, "restarting")
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
	require.Empty(t, a.executions())

	d.SetPartitionState("p"+b.address, false, "out of memory")
	err := infer(t.Context(), t, d, 2, 1, nil)
	requireCode(t, codes.Unavailable, err)
	require.ErrorContains(t, err, "out of memory")
	requireCode(t, codes.Unavailable, infer(t.Context(), t, d, 3, 1, nil))

	d.SetPartitionState("p"+a.address, true, "")
	require.NoError(t, infer(t.Context(), t, d, 4, 1, nil))
	require.Equal(t, []int{1}, a.executions())
}

func TestCancelledWhileQueued(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	first := make(chan error, 1)
	go func() { first <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- infer(ctx, t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	cancel()
	requireCode(t, codes.Canceled, <-second)
	close(p.hold)
	require.NoError(t, <-first)
	require.Len(t, p.executions(), 1, "the cancelled request never ran")
	require.Equal(t, 1, seen.count(t)[dispatch.Cancelled])
}

// TestCancelledWhileRunning: the batch that others share goes on, and so does
// the partition's exclusive use.
func TestCancelledWhileRunning(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	d.SetProfile(linear(time.Millisecond, 5*time.Millisecond))
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	results := [2]chan error{make(chan error, 1), make(chan error, 1)}
	go func() { results[0] <- infer(ctx, t, d, 1, 1, nil) }()
	go func() { results[1] <- infer(t.Context(), t, d, 2, 1, nil) }()
	<-p.started
	cancel()
	requireCode(t, codes.Canceled, <-results[0])
	close(p.hold)
	require.NoError(t, <-results[1])
}

func TestLateIsDroppedWhereAsked(t *testing.T) {
	p := newTriton(t)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) { m.Late, m.SLO = policy.LatePolicy_LATE_POLICY_DROP, 20*time.Millisecond }, p))
	d.SetProfile(linear(time.Millisecond, 50*time.Millisecond)) // can never be in time
	err := infer(t.Context(), t, d, 1, 1, nil)
	requireCode(t, codes.Unavailable, err)
	require.Equal(t, "Request timeout expired", status.Convert(err).Message())
	require.Equal(t, 1, seen.count(t)[dispatch.Dropped])
	require.NotEmpty(t, seen.outcomes[0].Reason)
	require.Empty(t, p.executions())
}

func TestLateIsServedByDefault(t *testing.T) {
	p := newTriton(t)
	p.takes = 30 * time.Millisecond
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) { m.SLO = 20 * time.Millisecond }, p))
	d.SetProfile(linear(time.Millisecond, 50*time.Millisecond))
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
	require.Equal(t, 1, seen.count(t)[dispatch.Late])
}

func TestTimeoutParameterShortensTheDeadline(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) {
		m.SLO, m.Late = time.Hour, policy.LatePolicy_LATE_POLICY_DROP
	}, p))
	d.SetProfile(linear(time.Millisecond, 50*time.Millisecond))
	err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) {
		m.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 20_000}}}
	})
	requireCode(t, codes.Unavailable, err)
}

func TestLimits(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	for name, o := range map[string]dispatch.Options{"requests": {MaxQueuedRequests: 1}, "bytes": {MaxQueuedBytes: 60}} {
		t.Run(name, func(t *testing.T) {
			d, seen := newDispatcher(t, o, table(1, nil, p))
			first := make(chan error, 1)
			hold := make(chan struct{})
			p.set(func() { p.hold = hold })
			go func() { first <- infer(t.Context(), t, d, 1, 1, nil) }()
			<-p.started
			err := infer(t.Context(), t, d, 2, 1, nil)
			requireCode(t, codes.Unavailable, err)
			require.ErrorContains(t, err, name)
			close(hold)
			require.NoError(t, <-first)
			require.Equal(t, 1, seen.count(t)[dispatch.Refused])
		})
	}
}

func TestUnknownModel(t *testing.T) {
	d, _ := newDispatcher(t, dispatch.Options{}, nil)
	requireCode(t, codes.Unavailable, infer(t.Context(), t, d, 1, 1, nil))
	require.NoError(t, d.Swap(t.Context(), table(1, nil, newTriton(t))))
	err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) { m.ModelName = "x" })
	requireCode(t, codes.NotFound, err)
	require.Equal(t, "Request for unknown model: 'x' is not found", status.Convert(err).Message())
}

// TestWhatDoesNotValidateIsTritonsToRefuse: the request reaches the server
// unchanged, and alone.
func TestWhatDoesNotValidateIsTritonsToRefuse(t *testing.T) {
	p := newTriton(t)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		if r.Inputs[0].Datatype != "FP32" {
			return status.Error(codes.InvalidArgument, "Triton's words")
		}
		return nil
	}
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Datatype = "FP16" })
	requireCode(t, codes.InvalidArgument, err)
	require.Equal(t, "Triton's words", status.Convert(err).Message())
	require.True(t, seen.outcomes[0].PassedThrough)
}

// A model that another client has unloaded from one of two servers, before the
// table shows it, is requested from the other server. If no server has it, the
// error is Triton's.
func TestWhatAServerDoesNotHaveIsAskedForElsewhere(t *testing.T) {
	unloaded := func(*tritonpb.ModelInferRequest) error {
		return status.Error(codes.NotFound, "Request for unknown model: 'm' has no available versions")
	}
	for name, batchable := range map[string]bool{"passed through": false, "batched": true} {
		t.Run(name, func(t *testing.T) {
			without, with := newTriton(t), newTriton(t)
			without.refuse = unloaded
			d, seen := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) { m.Batchable = batchable }, without, with))
			for _, err := range atOnce(8, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1, nil) }) {
				require.NoError(t, err)
			}
			require.Equal(t, map[dispatch.Result]int{dispatch.OK: 8}, resultsInTime(seen.count(t)))
			require.NotEmpty(t, without.executions(), "it was asked")
			require.True(t, d.Partitions()[0].Up, "it serves its other models")

			with.set(func() { with.refuse = unloaded })
			err := infer(t.Context(), t, d, 9, 1, nil)
			requireCode(t, codes.NotFound, err)
			require.Equal(t, "Request for unknown model: 'm' has no available versions", status.Convert(err).Message())
		})
	}
}

func TestRequestsThatKillAreRefused(t *testing.T) {
	p := newTriton(t)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	err := infer(t.Context(), t, d, 1, 1, func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape = []int64{1 << 62, 8} })
	requireCode(t, codes.InvalidArgument, err)
	require.Empty(t, p.executions())
	require.Equal(t, 1, seen.count(t)[dispatch.Refused])
}

func TestSequencesStayTogether(t *testing.T) {
	parts := []*triton{newTriton(t), newTriton(t), newTriton(t)}
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) { m.Batchable, m.PassThroughReason = false, "sequence batching" }, parts...))
	send := func(id int64, seed uint32) {
		require.NoError(t, infer(t.Context(), t, d, seed, 1, func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: id}}}
		}))
	}
	for round := range uint32(5) {
		for id := range int64(10) {
			send(id+1, round*100+uint32(id))
		}
	}
	home := make(map[string]string)
	for _, p := range parts {
		for _, id := range p.seen {
			sequence := id[len(id)-1:]
			if was, ok := home[sequence]; ok {
				require.Equal(t, was, p.address)
			}
			home[sequence] = p.address
		}
	}
}

// TestSwapUnderLoad: tables replace each other while requests arrive, and no
// request fails.
func TestSwapUnderLoad(t *testing.T) {
	a, b := newTriton(t), newTriton(t)
	a.takes, b.takes = time.Millisecond, time.Millisecond
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, a))
	d.SetProfile(linear(200*time.Microsecond, 2*time.Millisecond))
	var stop atomic.Bool
	var load sync.WaitGroup
	var sent atomic.Uint32
	for range 16 {
		load.Go(func() {
			for !stop.Load() {
				if err := infer(t.Context(), t, d, sent.Add(1), 1, nil); err != nil {
					t.Errorf("request failed: %v", err)
					return
				}
			}
		})
	}
	for i := range 20 {
		next := [][]*triton{{b}, {a, b}, {a}}[i%3]
		require.NoError(t, d.Swap(t.Context(), table(uint64(i+2), func(m *router.Model) { m.SLO = time.Duration(20+i) * time.Millisecond }, next...)))
		if i%3 == 0 {
			<-d.Drained("p"+a.address, "")
			before := len(a.executions())
			time.Sleep(5 * time.Millisecond)
			require.Len(t, a.executions(), before, "a drained partition gets nothing")
		}
		time.Sleep(5 * time.Millisecond)
	}
	stop.Store(true)
	load.Wait()
	counts := seen.count(t)
	require.Equal(t, int(sent.Load()), counts[dispatch.OK]+counts[dispatch.Late])
}

// oneRunsOneWaits is a partition that holds a request until hold is closed, with a
// second one queued behind it. Results are both requests' errors.
func oneRunsOneWaits(t *testing.T) (p *triton, d *dispatch.Dispatcher, results chan error) {
	p = newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, _ = newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	results = make(chan error, 10)
	go func() { results <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	go func() { results <- infer(t.Context(), t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	return p, d, results
}

// TestUnbatchedModelServesWhatItAccepted: requests that were queued when the model
// stopped being batched are passed through, and so are those that were routed by
// an earlier table in which it was batched.
func TestUnbatchedModelServesWhatItAccepted(t *testing.T) {
	p, d, results := oneRunsOneWaits(t)
	require.NoError(t, d.Swap(t.Context(), table(2, func(m *router.Model) { m.Batchable = false }, p)))
	<-p.started
	close(p.hold)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
}

// TestBatchingTurnedOnAndOffUnderLoad: whichever table a request was routed by, it
// is answered.
func TestBatchingTurnedOnAndOffUnderLoad(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	d.SetProfile(linear(200*time.Microsecond, 2*time.Millisecond))
	var stop atomic.Bool
	var load sync.WaitGroup
	var sent atomic.Uint32
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for range 8 {
		load.Go(func() {
			for !stop.Load() {
				if err := infer(ctx, t, d, sent.Add(1), 1, nil); err != nil {
					t.Errorf("request failed: %v", err)
					return
				}
			}
		})
	}
	for i := range 200 {
		require.NoError(t, d.Swap(t.Context(), table(uint64(i+2), func(m *router.Model) { m.Batchable = i%2 == 1 }, p)))
		for before := sent.Load(); sent.Load() < before+10 && ctx.Err() == nil; {
			time.Sleep(50 * time.Microsecond)
		}
	}
	stop.Store(true)
	load.Wait()
}

// TestRemovedModelServesWhatItAccepted: requests that were queued when the model
// left the table are served where it was.
func TestRemovedModelServesWhatItAccepted(t *testing.T) {
	p, d, results := oneRunsOneWaits(t)
	empty := table(2, nil, p)
	empty.Models = nil
	require.NoError(t, d.Swap(t.Context(), empty))
	requireCode(t, codes.NotFound, infer(t.Context(), t, d, 3, 1, nil))
	drained := d.Drained("p"+p.address, "m")
	select {
	case <-drained:
		t.Fatal("drained while requests run")
	case <-time.After(20 * time.Millisecond):
	}
	close(p.hold)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	<-drained
}

func TestSwapRefusesNonsense(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	for name, change := range map[string]func(*router.Model){
		"partition":  func(m *router.Model) { m.Places = []router.Place{{Partition: "x"}} },
		"discipline": func(m *router.Model) { m.Discipline = "x" },
		"drop":       func(m *router.Model) { m.DropPolicy = "x" },
		"name":       func(m *router.Model) { m.Name = "x" },
	} {
		require.ErrorIs(t, d.Swap(t.Context(), table(2, change, p)), router.ErrTable, name)
	}
	require.Equal(t, uint64(1), d.Routes().Revision)
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
}

func TestDrain(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	first := make(chan error, 1)
	go func() { first <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, d.Drain(short), context.DeadlineExceeded)
	requireCode(t, codes.Unavailable, infer(t.Context(), t, d, 2, 1, nil))
	close(p.hold)
	require.NoError(t, d.Drain(t.Context()))
	require.NoError(t, <-first)
}
