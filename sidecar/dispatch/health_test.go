// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

var errCUDA = status.Error(codes.Internal, "CUDA error: an illegal memory access was encountered")

func fails(err error) func(*tritonpb.ModelInferRequest) error {
	return func(*tritonpb.ModelInferRequest) error { return err }
}

// TestAPlaceThatFailsFastIsEjected: one of four servers answers every execution with an error at once, so that it is always free. No request fails,
// whether it is queued or passed through, and the server gets a few of them only. When its executions succeed again it serves again.
func TestAPlaceThatFailsFastIsEjected(t *testing.T) {
	for name, change := range map[string]func(*router.Model){
		"queued":         nil,
		"passed through": func(m *router.Model) { m.Batchable, m.PassThroughReason = false, "a test" },
	} {
		t.Run(name, func(t *testing.T) {
			parts := []*triton{newTriton(t), newTriton(t), newTriton(t), newTriton(t)}
			sick := parts[0]
			sick.refuse = fails(errCUDA)
			for _, p := range parts[1:] {
				p.takes = 2 * time.Millisecond
			}
			changes := make(chan router.PlaceHealth, 100)
			d, seen := newDispatcher(t, dispatch.Options{PlaceChanged: func(h router.PlaceHealth) { changes <- h }}, table(1, change, parts...))
			d.SetProfile(linear(time.Millisecond, time.Millisecond))
			for _, err := range inTurns(300, 6, func(i int) error { return infer(t.Context(), t, d, uint32(i+1), 1, nil) }) {
				require.NoError(t, err)
			}
			ejected := <-changes
			require.Equal(t, "m", ejected.Model)
			require.Equal(t, "p"+sick.address, ejected.Partition)
			require.True(t, ejected.Ejected)
			require.Contains(t, ejected.Cause, "CUDA error")
			require.Less(t, len(sick.executions()), 40, "the sick server gets few of 300 requests")
			require.Equal(t, 300, resultsInTime(seen.count(t))[dispatch.OK])

			sick.set(func() { sick.refuse = nil })
			require.Eventually(t, func() bool {
				require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
				return len(d.Unhealthy()) == 0
			}, 30*time.Second, 5*time.Millisecond, "the next execution after the ejection brings it back")
		})
	}
}

// inTurns runs f n times, some at the same time, and returns the errors.
func inTurns(n, atATime int, f func(i int) error) []error {
	errs := make([]error, n)
	next := make(chan int)
	var group sync.WaitGroup
	for range atATime {
		group.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	return errs
}

// TestTheLastPlaceIsNeverEjected: a model whose only server fails goes on being sent there, and its callers get the server's errors.
func TestTheLastPlaceIsNeverEjected(t *testing.T) {
	p := newTriton(t)
	p.refuse = fails(errCUDA)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	for i := range 20 {
		err := infer(t.Context(), t, d, uint32(i+1), 1, nil)
		requireCode(t, codes.Internal, err)
		require.Contains(t, err.Error(), "CUDA error")
	}
	require.Empty(t, d.Unhealthy())
	p.set(func() { p.refuse = nil })
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
}

// TestWhenTheLastHealthyPlaceGoesTheEjectedOneServes: better a place that may fail than none.
func TestWhenTheLastHealthyPlaceGoesTheEjectedOneServes(t *testing.T) {
	sick, well := newTriton(t), newTriton(t)
	sick.refuse = fails(errCUDA)
	d, _ := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}}, table(1, nil, sick, well))
	for i := range 20 {
		require.NoError(t, infer(t.Context(), t, d, uint32(i+1), 1, nil))
	}
	require.Len(t, d.Unhealthy(), 1)
	sick.set(func() { sick.refuse = nil })
	d.SetPartitionState("p"+well.address, false, "a test")
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
}

// TestATableThatLeavesOnlyTheEjectedPlaceHasItServe, though the partition serves what it did: the others have lost the model.
func TestATableThatLeavesOnlyTheEjectedPlaceHasItServe(t *testing.T) {
	sick, well := newTriton(t), newTriton(t)
	sick.refuse = fails(errCUDA)
	d, _ := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}}, table(1, nil, sick, well))
	for i := range 20 {
		require.NoError(t, infer(t.Context(), t, d, uint32(i+1), 1, nil))
	}
	require.Len(t, d.Unhealthy(), 1)
	sick.set(func() { sick.refuse = nil })
	require.NoError(t, d.Swap(t.Context(), table(2, nil, sick)))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, infer(ctx, t, d, 1, 1, nil))
}

// patient is a clock with which no ejection ends by itself.
type patient struct{ clock.Clock }

func (p patient) After(d time.Duration, f func()) clock.Timer {
	if d >= 200*time.Millisecond {
		d = time.Hour
	}
	return p.Clock.After(d, f)
}

// TestPlaceChangedIsToldWhatATableChanges: an ejected place that a table leaves to serve its model alone is on probation, and who was told that it
// was ejected is told so.
func TestPlaceChangedIsToldWhatATableChanges(t *testing.T) {
	sick, well := newTriton(t), newTriton(t)
	sick.refuse = fails(errCUDA)
	changes := make(chan router.PlaceHealth, 100)
	d, _ := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}, PlaceChanged: func(h router.PlaceHealth) { changes <- h }}, table(1, nil, sick, well))
	for i := range 20 {
		require.NoError(t, infer(t.Context(), t, d, uint32(i+1), 1, nil))
	}
	require.True(t, (<-changes).Ejected)
	require.Empty(t, changes)
	require.NoError(t, d.Swap(t.Context(), table(2, nil, sick)))
	require.Len(t, changes, 1)
	now := <-changes
	require.Equal(t, "p"+sick.address, now.Partition)
	require.False(t, now.Ejected)
	require.Contains(t, now.Cause, "CUDA error", "its next execution decides")
}

// TestBadRequestsEjectNoPlaceForLong: what a server refuses says nothing of it, and what fails on two places is the request's own fault.
func TestBadRequestsEjectNoPlaceForLong(t *testing.T) {
	for name, failure := range map[string]error{
		"refused":                        status.Error(codes.InvalidArgument, "[request id: id1] unexpected shape for input 'IN' for model 'm'. Expected [-1,4], got [1,5]"),
		"given up by the server's queue": status.Error(codes.Unavailable, "Request timeout expired"),
		"failed":                         status.Error(codes.Internal, "Failed to process the request(s) for model instance 'm_0', message: ValueError: negative"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, options := inBubble(t, 2)
				for _, p := range parts {
					p.asked = func(context.Context, *tritonpb.ModelInferRequest) { time.Sleep(time.Millisecond) }
					p.refuse = func(r *tritonpb.ModelInferRequest) error {
						for row := 0; row < len(r.RawInputContents[0]); row += 16 {
							if r.RawInputContents[0][row] == 13 {
								return failure
							}
						}
						return nil
					}
				}
				d, seen := newDispatcher(t, options, table(1, nil, parts...))
				d.SetProfile(linear(time.Millisecond, time.Millisecond))
				errs := inTurns(300, 8, func(i int) error {
					if i%5 == 0 {
						return infer(t.Context(), t, d, 13, 1, nil)
					}
					return infer(t.Context(), t, d, 1000<<8, 1, nil)
				})
				for i, err := range errs {
					if i%5 == 0 {
						require.Equal(t, status.Convert(failure).Message(), status.Convert(err).Message())
					} else {
						require.NoError(t, err)
					}
				}
				if name == "failed" {
					// Three that fail in a row on one place eject it until they have failed on the other one, too, or for a second where that
					// one was ejected meanwhile. The next executions bring it back.
					time.Sleep(2 * time.Second)
					for range 8 {
						require.NoError(t, errors.Join(inTurns(8, 8, func(int) error { return infer(t.Context(), t, d, 1000<<8, 1, nil) })...))
					}
				}
				require.Empty(t, d.Unhealthy())
				seen.count(t)
			})
		})
	}
}

// TestARequestOfASequenceIsNotRetriedElsewhere, because its state is where it failed.
func TestARequestOfASequenceIsNotRetriedElsewhere(t *testing.T) {
	parts := []*triton{newTriton(t), newTriton(t)}
	parts[0].refuse = fails(errCUDA)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) { m.Batchable = false }, parts...))
	requireCode(t, codes.Internal, infer(t.Context(), t, d, 1, 1, func(r *tritonpb.ModelInferRequest) {
		r.Parameters = map[string]*tritonpb.InferParameter{
			"sequence_id":    {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}},
			"sequence_start": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: true}},
		}
	}))
	require.Empty(t, parts[1].executions())
}

// TestASequenceBeginsAnewElsewhere: a sequence whose place is ejected stays there, with its state, but one that begins again begins on another place.
func TestASequenceBeginsAnewElsewhere(t *testing.T) {
	parts := []*triton{newTriton(t), newTriton(t)}
	parts[0].refuse = fails(errCUDA)
	d, _ := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}}, table(1, func(m *router.Model) { m.Batchable = false }, parts...))
	step := func(start bool) error {
		return infer(t.Context(), t, d, 1, 1, func(r *tritonpb.ModelInferRequest) {
			r.Parameters = map[string]*tritonpb.InferParameter{
				"sequence_id":    {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}},
				"sequence_start": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: start}},
			}
		})
	}
	for i := range 4 { // three faults eject the place
		requireCode(t, codes.Internal, step(i == 0))
	}
	require.Len(t, d.Unhealthy(), 1)
	require.NoError(t, step(true))
	require.Len(t, parts[1].executions(), 1)
}

// TestProxiedRequestsReportTheirPlace: a server that fails requests of the HTTP proxy is ejected, too.
func TestProxiedRequestsReportTheirPlace(t *testing.T) {
	parts := []*triton{newTriton(t), newTriton(t)}
	d, _ := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}}, table(1, nil, parts...))
	for range 6 {
		p, done, err := d.Pick(t.Context(), "m")
		require.NoError(t, err)
		if p.ID == "p"+parts[0].address {
			done(errCUDA)
		} else {
			done(nil)
		}
	}
	unhealthy := d.Unhealthy()
	require.Len(t, unhealthy, 1)
	require.Equal(t, "p"+parts[0].address, unhealthy[0].Partition)
	for range 10 {
		p, done, err := d.Pick(t.Context(), "m")
		require.NoError(t, err)
		require.Equal(t, "p"+parts[1].address, p.ID)
		done(nil)
	}
}

// TestStreamsReportTheirPlace: a server that fails the requests of a decoupled model gets no more of them. What failed is answered: a part of the
// answers may have been sent.
func TestStreamsReportTheirPlace(t *testing.T) {
	parts := []*triton{newTriton(t), newTriton(t)}
	parts[0].refuse = fails(errCUDA)
	d, _, client := streamed(t, dispatch.Options{Clock: patient{clock.Timers()}}, table(1, decoupled, parts...))
	failed := 0
	for range 20 {
		for _, line := range lines(t, openStream(t.Context(), t, client, message("a", 1, 1))) {
			if strings.Contains(line, "CUDA error") {
				failed++
			}
		}
	}
	require.Equal(t, 3, failed)
	require.Len(t, d.Unhealthy(), 1)
}

// TestWhatAServersQueueGivesUpOnAStreamSaysNothingOfItsPlace, as it does not outside streams.
func TestWhatAServersQueueGivesUpOnAStreamSaysNothingOfItsPlace(t *testing.T) {
	parts := []*triton{newTriton(t), newTriton(t)}
	parts[0].refuse = fails(status.Error(codes.Unavailable, "Request timeout expired"))
	d, _, client := streamed(t, dispatch.Options{}, table(1, decoupled, parts...))
	for range 5 {
		_ = lines(t, openStream(t.Context(), t, client, message("a", 1, 1)))
	}
	require.Empty(t, d.Unhealthy())
	require.Len(t, parts[0].executions(), 5)
}

// TestABadRequestIsFoundByHalves: of eight requests that share an execution one fails it. Its caller alone gets the error, word for word, and it
// takes at most six further executions instead of eight.
func TestABadRequestIsFoundByHalves(t *testing.T) {
	for bad := range 8 {
		t.Run(fmt.Sprint("request ", bad), func(t *testing.T) {
			p := newTriton(t)
			p.hold, p.started = make(chan struct{}), make(chan string, 100)
			p.refuse = func(r *tritonpb.ModelInferRequest) error {
				for row := 0; row < len(r.RawInputContents[0]); row += 16 {
					if int(r.RawInputContents[0][row]) == bad+1 {
						return status.Errorf(codes.Internal, "Failed to process the request(s) for model instance 'm_0', message: ValueError: %d rows", r.Inputs[0].Shape[0])
					}
				}
				return nil
			}
			d, seen := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) { m.SLO = time.Minute }, p))
			d.SetProfile(linear(time.Millisecond, 10*time.Millisecond))
			first := make(chan error, 1)
			go func() { first <- infer(t.Context(), t, d, 100, 8, nil) }()
			<-p.started
			errs := make([]chan error, 8)
			for i := range errs {
				errs[i] = make(chan error, 1)
				go func() { errs[i] <- infer(t.Context(), t, d, uint32(i+1), 1, nil) }()
				require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == i+1 }, 30*time.Second, 100*time.Microsecond)
			}
			close(p.hold)
			require.NoError(t, <-first)
			for i := range errs {
				if err := <-errs[i]; i == bad {
					require.ErrorContains(t, err, "ValueError: 1 rows")
				} else {
					require.NoError(t, err)
				}
			}
			ran := p.executions()
			require.Equal(t, []int{8, 8}, ran[:2])
			require.LessOrEqual(t, len(ran), 2+6, "%v", ran)
			seen.count(t)
		})
	}
}

// TestAHangIsNoticed: an execution takes many times as long as its profile says. Its server is lost, its requests run elsewhere, and the owner of
// the server is called to start it again.
func TestAHangIsNoticed(t *testing.T) {
	sick, well := newTriton(t), newTriton(t)
	sick.hold = make(chan struct{})
	defer close(sick.hold)
	hung := make(chan string, 10)
	d, _ := newDispatcher(t, dispatch.Options{Clock: patient{clock.Timers()}, HangFloor: 500 * time.Millisecond, Hung: func(partition string, cause error) {
		hung <- partition + ": " + cause.Error()
	}}, table(1, nil, sick, well))
	d.SetProfile(linear(time.Millisecond, time.Millisecond))
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
	require.Contains(t, <-hung, "p"+sick.address+": an execution of model m")
	require.Len(t, well.executions(), 1)
	require.NoError(t, infer(t.Context(), t, d, 2, 1, nil))
	require.LessOrEqual(t, len(sick.executions()), 1, "its place is ejected, although it says that it is ready")
}

// TestAHangIsNoticedWithoutAPrediction: of a model without a profile, and of a request outside the queue, the floor is taken for one.
func TestAHangIsNoticedWithoutAPrediction(t *testing.T) {
	for name, change := range map[string]func(*router.Model){
		"no profile":        nil,
		"outside the queue": func(m *router.Model) { m.Batchable, m.PassThroughReason = false, "a test" },
	} {
		t.Run(name, func(t *testing.T) {
			sick, well := newTriton(t), newTriton(t)
			sick.hold = make(chan struct{})
			defer close(sick.hold)
			hung := make(chan string, 10)
			const floor = 50 * time.Millisecond
			d, _ := newDispatcher(t, dispatch.Options{HangFloor: floor, Hung: func(partition string, cause error) {
				hung <- partition + ": " + cause.Error()
			}}, table(1, change, sick, well))
			began := time.Now()
			require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
			require.GreaterOrEqual(t, time.Since(began), 20*floor)
			require.Contains(t, <-hung, "p"+sick.address+": an execution of model m has run for")
			require.Empty(t, hung, "once")
			require.Len(t, well.executions(), 1)
		})
	}
}

// errBroken is how a call ends whose connection has failed.
var errBroken = status.Error(codes.Unavailable, "Socket closed")

// TestAHangIsNoticedOnAServerThatIsLost, or that the table does not have any more: the execution that hangs is given up there, too. Only the one that the table has
// is to be started again.
func TestAHangIsNoticedOnAServerThatIsLost(t *testing.T) {
	for name, taken := range map[string]bool{"lost": false, "taken off the table": true} {
		t.Run(name, func(t *testing.T) {
			sick, well := newTriton(t), newTriton(t)
			sick.hold, sick.passes, sick.started, sick.loading = make(chan struct{}), "aside", make(chan string, 10), true
			sick.refuse = func(r *tritonpb.ModelInferRequest) error {
				if r.Id == "aside" {
					return errBroken
				}
				return nil
			}
			defer close(sick.hold)
			hung := make(chan string, 10)
			o := dispatch.Options{HangFloor: time.Second, Hung: func(partition string, _ error) { hung <- partition }}
			d, _ := newDispatcher(t, o, table(1, nil, sick))
			d.SetProfile(linear(time.Millisecond, time.Millisecond))
			answered := make(chan error, 2)
			go func() { answered <- infer(t.Context(), t, d, 1, 1, nil) }()
			<-sick.started
			if taken {
				require.NoError(t, d.Swap(t.Context(), table(2, nil, well)))
			} else {
				go func() {
					resp, err := d.Infer(t.Context(), request(t, "aside", 1, 2, func(m *tritonpb.ModelInferRequest) { m.Outputs = aside("").Outputs }))
					if err == nil {
						resp.Free()
					}
					answered <- err
				}()
				require.Eventually(t, func() bool { return !d.Partitions()[0].Up }, 30*time.Second, time.Millisecond)
				require.NoError(t, d.Swap(t.Context(), table(2, nil, sick, well)))
				require.NoError(t, <-answered)
			}
			select {
			case err := <-answered:
				require.NoError(t, err)
			case <-time.After(30 * time.Second):
				t.Fatal("the execution that hangs is waited for")
			}
			if taken {
				require.Empty(t, hung)
			} else {
				require.Equal(t, "p"+sick.address, <-hung)
			}
		})
	}
}

// TestAFaultInARescueEndsNothing: an execution panics, and so does the attempt to forward its requests one by one.
func TestAFaultInARescueEndsNothing(t *testing.T) {
	p := newTriton(t)
	var faults atomic.Int32
	broken := grpc.WithUnaryInterceptor(func(ctx context.Context, method string, in, out any, c *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
		if strings.HasSuffix(method, "/ModelInfer") && faults.Add(1) <= 2 {
			panic("a fault")
		}
		return next(ctx, method, in, out, c, o...)
	})
	d, seen := newDispatcher(t, dispatch.Options{Forward: forward.Options{DialOptions: []grpc.DialOption{broken}}}, table(1, nil, p))
	requireCode(t, codes.Internal, infer(t.Context(), t, d, 1, 1, nil))
	require.NoError(t, infer(t.Context(), t, d, 2, 1, nil))
	seen.count(t)
	n, bytes := d.UnderWay()
	require.Zero(t, n)
	require.Zero(t, bytes)
}
