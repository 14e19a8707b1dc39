// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// broken fails requests for the merge group with an error of the backend, and serves those for its members.
func broken(r *tritonpb.ModelInferRequest) error {
	if r.ModelName == "g" {
		return status.Error(codes.Internal, "Failed to process the request(s) for model instance 'g_0', message: RuntimeError")
	}
	return nil
}

// ejects calls f when a place of the merge group is ejected, with its partition.
func ejects(f func(partition string)) func(router.PlaceHealth) {
	return func(h router.PlaceHealth) {
		if h.Group && h.Ejected {
			f(h.Partition)
		}
	}
}

// outside makes a request that is not batched: Triton does not accept the parameter without a sequence.
func outside(r *tritonpb.ModelInferRequest) {
	r.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 0}}}
}

// A group whose executions fail is reported. Requests that failed in it are answered by their own model, unmerged or where the group works.
func TestRequestsOfAGroupThatFailsRunElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*tritonpb.ModelInferRequest)
		next   func(p, q *triton) *router.Table
	}{
		"queued, unmerged":             {func(*tritonpb.ModelInferRequest) {}, func(p, q *triton) *router.Table { return apart(2, p, q) }},
		"queued, on another partition": {func(*tritonpb.ModelInferRequest) {}, func(_, q *triton) *router.Table { return merged(2, q) }},
		"passed through, unmerged":     {outside, func(p, q *triton) *router.Table { return apart(2, p, q) }},
		"passed through, elsewhere":    {outside, func(_, q *triton) *router.Table { return merged(2, q) }},
		"queued, with members to come": {func(*tritonpb.ModelInferRequest) {}, func(p, q *triton) *router.Table { return apart(2, p) }},
		"requests for one output, apart": {func(r *tritonpb.ModelInferRequest) {
			r.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUT"}}
		}, func(p, q *triton) *router.Table { return apart(2, q) }},
	} {
		t.Run(name, func(t *testing.T) {
			p, q := newTriton(t), newTriton(t)
			p.refuse = broken
			var once sync.Once
			faulted := make(chan string, 100)
			swapped := make(chan error, 1)
			var d *dispatch.Dispatcher
			var seen *recorder
			o := dispatch.Options{PlaceChanged: ejects(func(partition string) {
				faulted <- partition
				once.Do(func() {
					go func() {
						assert.Eventually(t, func() bool { return seen.arrivals() == 12 }, 30*time.Second, time.Millisecond, "others have come meanwhile")
						swapped <- d.Swap(t.Context(), c.next(p, q))
					}()
				})
			})}
			d, seen = newDispatcher(t, o, merged(1, p))
			for i, err := range atOnce(12, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1+i%2, both(of(i%2), c.change)) }) { //nolint:gosec // small
				require.NoError(t, err, "request %d", i)
			}
			require.NoError(t, <-swapped)
			require.Equal(t, "p"+p.address, <-faulted)
			require.NoError(t, d.Close())
			require.Equal(t, map[dispatch.Result]int{dispatch.OK: 12}, resultsInTime(seen.count(t)))
		})
	}
}

func both(all ...func(*tritonpb.ModelInferRequest)) func(*tritonpb.ModelInferRequest) {
	return func(r *tritonpb.ModelInferRequest) {
		for _, change := range all {
			change(r)
		}
	}
}

// A request that fails while others succeed is at fault itself, and its caller gets the server's error.
func TestARequestThatFailsWhileOthersSucceedIsAnswered(t *testing.T) {
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){"queued": func(*tritonpb.ModelInferRequest) {}, "passed through": outside} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			var d *dispatch.Dispatcher
			var tries atomic.Int32
			p.refuse = func(r *tritonpb.ModelInferRequest) error {
				if binary.LittleEndian.Uint32(r.RawInputContents[0]) != 666 {
					return nil
				}
				tries.Add(1)
				if err := infer(t.Context(), t, d, 1, 1, both(of(0), outside)); err != nil {
					return err
				}
				return broken(r)
			}
			d, _ = newDispatcher(t, dispatch.Options{PlaceChanged: ejects(func(string) { t.Error("the group works") })}, merged(1, p))
			err := infer(t.Context(), t, d, 666, 1, both(of(1), change))
			requireCode(t, codes.Internal, err)
			require.NotContains(t, status.Convert(err).Message(), "'g", "it is the member's error")
			require.EqualValues(t, 3, tries.Load())
		})
	}
}

// A refusal, or an error that can only be the request's own fault, does not count against the group.
func TestRefusalsSayNothingOfAGroup(t *testing.T) {
	for _, refusal := range []error{
		status.Error(codes.InvalidArgument, "unexpected shape for input 'IN' for model 'g'. Expected [-1,4], got [1,5]"),
		status.Error(codes.InvalidArgument, "the model says no"),
		status.Error(codes.OutOfRange, "no such token"),
	} {
		p := newTriton(t)
		var tries atomic.Int32
		p.refuse = func(*tritonpb.ModelInferRequest) error { tries.Add(1); return refusal }
		d, _ := newDispatcher(t, dispatch.Options{PlaceChanged: ejects(func(string) { t.Error("the group works") })}, merged(1, p))
		for range 5 {
			requireCode(t, status.Code(refusal), infer(t.Context(), t, d, 1, 1, of(1)))
		}
		require.EqualValues(t, 5, tries.Load())
	}
}

// A failure of a batch is not one of each of its requests: a request that fails twice alone after it runs again, too.
func TestAFailureOfABatchIsNotARequests(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	var d *dispatch.Dispatcher
	swapped := make(chan error, 1)
	d, _ = newDispatcher(t, dispatch.Options{PlaceChanged: ejects(func(string) {
		go func() { swapped <- d.Swap(t.Context(), apart(2, p)) }()
	})}, merged(1, p))
	results, left := make(chan error, 2), make(chan error, 1)
	send := func(ctx context.Context, seed uint32, to chan<- error) {
		go func() { to <- infer(ctx, t, d, seed, 1, of(1)) }()
	}
	send(t.Context(), 1, results)
	<-p.started
	waits := func(n int) {
		require.Eventually(t, func() bool { c, _ := d.Counts("n"); return c.Waiting == n }, 30*time.Second, time.Millisecond)
	}
	ctx, leave := context.WithCancel(t.Context())
	send(ctx, 2, left)
	waits(1)
	send(t.Context(), 3, results)
	waits(2)
	p.set(func() {
		p.refuse = func(r *tritonpb.ModelInferRequest) error {
			if r.Inputs[0].Shape[0] > 1 {
				leave() // so that the other is alone
				requireCode(t, codes.Canceled, <-left)
			}
			if binary.LittleEndian.Uint32(r.RawInputContents[0]) == 1 {
				return nil
			}
			return broken(r)
		}
	})
	close(p.hold)
	require.NoError(t, <-results)
	require.NoError(t, <-results, "its member serves it")
	require.NoError(t, <-swapped)
}

// Requests that wait in the queue of a group that fails and stays are answered as well, and the group serves again once it is well.
func TestNobodyWaitsLongForAGroupThatFails(t *testing.T) {
	p := newTriton(t)
	p.refuse = broken
	d, seen := newDispatcher(t, dispatch.Options{OutageWait: time.Second}, merged(1, p))
	began := time.Now()
	errs := atOnce(20, func(i int) error { return infer(t.Context(), t, d, uint32(i+1), 1, of(i%2)) }) //nolint:gosec // small
	require.Less(t, time.Since(began), 10*time.Second)
	for _, err := range errs {
		require.Error(t, err)
		require.NotContains(t, err.Error(), "'g")
	}
	p.set(func() { p.refuse = nil })
	require.Eventually(t, func() bool {
		atOnce(8, func(i int) error { return infer(t.Context(), t, d, uint32(i+1), 1, of(i%2)) }) //nolint:gosec // small
		return seen.count(t)[dispatch.OK] > 0 && len(d.Unhealthy()) == 0
	}, 30*time.Second, time.Millisecond, "it serves again")
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
}

// If the group is not taken out of the table, its error is the answer in the end.
func TestAGroupThatStaysAnswersItsError(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){"queued": func(*tritonpb.ModelInferRequest) {}, "passed through": outside} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTriton(t)
			p.refuse = broken
			d, _ := newDispatcher(t, dispatch.Options{OutageWait: 500 * time.Millisecond}, merged(1, p))
			requireCode(t, codes.Internal, infer(t.Context(), t, d, 1, 1, both(of(1), change)))
			require.LessOrEqual(t, len(p.executions()), 4, "three until the place is ejected, one more after the ejection, when the request may wait no longer")
		})
	}
}

// If the member fails as well, the answer is the member's error.
func TestAMembersOwnFailureIsItsAnswer(t *testing.T) {
	p := newTriton(t)
	var mu sync.Mutex
	var ran []string
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, r.ModelName)
		return status.Error(codes.Internal, "no such token")
	}
	var d *dispatch.Dispatcher
	var once sync.Once
	var swaps sync.WaitGroup
	o := dispatch.Options{PlaceChanged: ejects(func(string) {
		once.Do(func() { swaps.Go(func() { _ = d.Swap(t.Context(), apart(2, p)) }) })
	})}
	d, _ = newDispatcher(t, o, merged(1, p))
	requireCode(t, codes.Internal, infer(t.Context(), t, d, 1, 1, of(1)))
	swaps.Wait()
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"g", "g", "g", "n"}, slices.Clone(ran))
}

// Requests wait for a group that its server does not have for a while, and callers do not see its name.
func TestAGroupThatWasUnloadedIsWaitedFor(t *testing.T) {
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){"queued": func(*tritonpb.ModelInferRequest) {}, "passed through": outside} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			var asked atomic.Int32
			p.refuse = func(*tritonpb.ModelInferRequest) error {
				if asked.Add(1) <= 12 {
					return status.Error(codes.NotFound, "Request for unknown model: 'g' has no available versions")
				}
				return nil
			}
			d, _ := newDispatcher(t, dispatch.Options{PlaceChanged: ejects(func(string) { t.Error("nothing is wrong with it") })}, merged(1, p))
			for i, err := range atOnce(4, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1, both(of(i%2), change)) }) { //nolint:gosec // small
				require.NoError(t, err, "request %d", i)
			}
		})
	}
}

// The wait of a request for its group does not count as a failure in it.
func TestARequestThatWaitedForItsGroupMayFailThere(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){"queued": func(*tritonpb.ModelInferRequest) {}, "passed through": outside} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTriton(t)
			var asked atomic.Int32
			p.refuse = func(r *tritonpb.ModelInferRequest) error {
				switch n := asked.Add(1); {
				case n <= 3:
					return status.Error(codes.NotFound, "Request for unknown model: 'g' has no available versions")
				case n == 4:
					return broken(r)
				}
				return nil
			}
			d, _ := newDispatcher(t, dispatch.Options{PlaceChanged: ejects(func(string) { t.Error("it failed once") })}, merged(1, p))
			require.NoError(t, infer(t.Context(), t, d, 1, 1, both(of(1), change)))
			require.EqualValues(t, 5, asked.Load())
		})
	}
}

// A failure on a server that another one has replaced, under the partition's name, does not count against the new one.
func TestAFaultOfTheServerBeforeIsNotHeldAgainstTheNext(t *testing.T) {
	type maker func(revision uint64, parts ...*triton) *router.Table
	for name, c := range map[string]struct {
		change func(*tritonpb.ModelInferRequest)
		next   maker
	}{
		"queued":                   {func(*tritonpb.ModelInferRequest) {}, merged},
		"queued, unmerged":         {func(*tritonpb.ModelInferRequest) {}, apart},
		"passed through":           {outside, merged},
		"passed through, unmerged": {outside, apart},
	} {
		t.Run(name, func(t *testing.T) {
			before, next := newTriton(t), newTriton(t)
			served := func(revision uint64, made maker, by *triton) *router.Table {
				table := made(revision, by)
				table.Partitions[0].ID = "p"
				for _, m := range table.Models {
					m.Places = []router.Place{m.Places[0]}
					m.Places[0].Partition = "p"
				}
				return table
			}
			var d *dispatch.Dispatcher
			var tries atomic.Int32
			before.refuse = func(r *tritonpb.ModelInferRequest) error {
				if tries.Add(1) == 3 {
					assert.NoError(t, d.Swap(t.Context(), served(2, c.next, next)))
				}
				return broken(r)
			}
			o := dispatch.Options{PlaceChanged: ejects(func(string) { t.Error("the next one works") })}
			d, _ = newDispatcher(t, o, served(1, merged, before))
			require.NoError(t, infer(t.Context(), t, d, 1, 1, both(of(1), c.change)))
		})
	}
}

// canceledOf is how many requests to a member, whose callers cancelled while they ran, are in its statistics.
func canceledOf(d *dispatch.Dispatcher, member string) (n uint64) {
	for _, s := range d.Series() {
		if s.Model == member {
			n += s.Failed["CANCELED"]
		}
	}
	return n
}

// A request whose caller cancels while it runs is in the statistics once, however the execution ends.
func TestWhoLeavesAFailedExecutionIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		// refuse is how p answers once it is not held any more; kill is set if it is killed instead.
		refuse func(*tritonpb.ModelInferRequest) error
		kill   bool
		o      dispatch.Options
		table  func(uint64, ...*triton) *router.Table
	}{
		"a merged batch, run again one by one": {refuse: brokenTogether, table: merged},
		"a batch, run again one by one":        {refuse: brokenTogether, table: apart},
		"a merged batch whose server is lost":  {kill: true, table: merged},
		"a batch whose server is lost":         {kill: true, table: apart},
	} {
		t.Run(name, func(t *testing.T) {
			p, q := newTriton(t), newTriton(t)
			p.hold, p.started = make(chan struct{}), make(chan string, 10)
			d, seen := newDispatcher(t, c.o, c.table(1, p))
			results := make(chan error, 3)
			send := func(seed uint32, member int) {
				go func() { results <- infer(t.Context(), t, d, seed, 1, of(member)) }()
			}
			send(1, 1)
			<-p.started
			waits := func(n int) {
				require.Eventually(t, func() bool { c, _ := d.Counts("n"); return c.Waiting == n }, 30*time.Second, time.Millisecond)
			}
			send(2, 1)
			waits(1)
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() { left <- infer(ctx, t, d, 3, 1, of(1)) }()
			waits(2)
			hold := p.hold
			p.set(func() { p.hold, p.refuse = make(chan struct{}), c.refuse })
			close(hold)
			require.NoError(t, <-results)
			<-p.started // both, together
			leave()
			requireCode(t, codes.Canceled, <-left)
			if c.kill {
				require.NoError(t, d.Swap(t.Context(), c.table(2, p, q)))
				p.kill()
			} else {
				p.set(func() { hold = p.hold; p.hold = nil })
				close(hold)
			}
			require.NoError(t, <-results)
			require.NoError(t, d.Close())
			require.Equal(t, map[dispatch.Result]int{dispatch.OK: 2, dispatch.Cancelled: 1}, resultsInTime(seen.count(t)))
			require.EqualValues(t, 1, canceledOf(d, "n"))
		})
	}
}

// brokenTogether fails requests of more than one row.
func brokenTogether(r *tritonpb.ModelInferRequest) error {
	if r.Inputs[0].Shape[0] > 1 {
		return status.Error(codes.Internal, "Failed to process the request(s) for model instance 'g_0', message: RuntimeError")
	}
	return nil
}

// A request whose caller cancels after it has failed alone, before it runs again, is in the statistics too.
func TestWhoLeavesBeforeTheGroupRunsHisRequestAgainIsCounted(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen := newDispatcher(t, dispatch.Options{}, merged(1, p))
	results := make(chan error, 2)
	go func() { results <- infer(t.Context(), t, d, 1, 1, of(0)) }()
	<-p.started
	waits := func(n int) {
		require.Eventually(t, func() bool { c, _ := d.Counts("n"); return c.Waiting == n }, 30*time.Second, time.Millisecond)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- infer(ctx, t, d, 2, 1, of(1)) }()
	waits(1)
	go func() { results <- infer(t.Context(), t, d, 3, 1, of(1)) }()
	waits(2)
	var once sync.Once
	p.set(func() {
		p.refuse = func(r *tritonpb.ModelInferRequest) error {
			switch seed := binary.LittleEndian.Uint32(r.RawInputContents[0]); {
			case r.Inputs[0].Shape[0] > 1, seed == 2:
				return broken(r)
			case seed == 3: // runs after the one that failed alone
				once.Do(func() { leave(); requireCode(t, codes.Canceled, <-left) })
			}
			return nil
		}
	})
	close(p.hold)
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	require.NoError(t, d.Close())
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 2, dispatch.Cancelled: 1}, resultsInTime(seen.count(t)))
	require.EqualValues(t, 1, canceledOf(d, "n"))
}
