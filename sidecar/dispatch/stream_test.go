// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

type inferClient = grpc.BidiStreamingClient[tritonpb.ModelInferRequest, tritonpb.ModelStreamInferResponse]

// streamed is a dispatcher behind the gRPC front, with a client of it.
func streamed(t *testing.T, o dispatch.Options, routes *router.Table) (*dispatch.Dispatcher, *recorder, tritonpb.GRPCInferenceServiceClient) {
	d, seen := newDispatcher(t, o, routes)
	address, _ := fronts(t, d, routes)
	return d, seen, tritonpb.NewGRPCInferenceServiceClient(dialTo(t, address))
}

// openStream begins a stream and sends requests on it.
func openStream(ctx context.Context, t *testing.T, client tritonpb.GRPCInferenceServiceClient, requests ...*tritonpb.ModelInferRequest) inferClient {
	s, err := client.ModelStreamInfer(ctx)
	require.NoError(t, err)
	for _, r := range requests {
		require.NoError(t, s.Send(r))
	}
	return s
}

// lines ends a stream and returns id, model, final mark and error of all answers.
func lines(t *testing.T, s inferClient) (all []string) {
	require.NoError(t, s.CloseSend())
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		r := m.InferResponse
		all = append(all, fmt.Sprintf("%s|%s|%v|%s", r.Id, r.ModelName, r.Parameters["triton_final_response"].GetBoolParam(), m.ErrorMessage))
	}
}

// aside is a request that no other can share an execution with.
func aside(id string) *tritonpb.ModelInferRequest {
	m := message(id, 1, 1)
	m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUT", Parameters: map[string]*tritonpb.InferParameter{
		"binary_data": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: true}},
	}}}
	return m
}

// TestStreamsShareExecutions: requests on a stream share executions with those on
// other streams and with unary ones.
func TestStreamsShareExecutions(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen, client := streamed(t, dispatch.Options{}, table(1, nil, p))
	first := openStream(t.Context(), t, client, message("first", 1, 1))
	<-p.started

	var streams []inferClient
	for i := range 3 {
		streams = append(streams, openStream(t.Context(), t, client, message(fmt.Sprint(i, "a"), 1, 1), message(fmt.Sprint(i, "b"), 1, 1)))
	}
	var unary sync.WaitGroup
	for range 2 {
		unary.Go(func() {
			_, err := client.ModelInfer(t.Context(), message("unary", 1, 1))
			if err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 8 }, 30*time.Second, time.Millisecond)
	close(p.hold)
	for i, s := range streams {
		require.Equal(t, []string{fmt.Sprint(i, "a|m|true|"), fmt.Sprint(i, "b|m|true|")}, lines(t, s))
	}
	require.Equal(t, []string{"first|m|true|"}, lines(t, first))
	unary.Wait()
	require.Equal(t, []int{1, 8}, p.executions())
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
	require.Equal(t, 9, resultsInTime(seen.count(t))[dispatch.OK])
}

// TestStreamOrder: answers come in the order of the requests, whichever way each
// took, and whichever was ready first.
func TestStreamOrder(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started, p.passes = make(chan struct{}), make(chan string, 10), "aside"
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		switch r.Id {
		case "": // the answer of a request in a batch
			return status.Error(codes.Internal, "not all")
		case "bad":
			return status.Error(codes.Internal, "the model's own")
		case "gone":
			return status.Error(codes.Unavailable, "Request for unknown model: 'm' version 1 is not at ready state")
		}
		return nil
	}
	d, seen, client := streamed(t, dispatch.Options{}, table(1, nil, p))
	absent := message("absent", 1, 1)
	absent.ModelName = "absent"
	s := openStream(t.Context(), t, client, message("slow", 1, 1), absent, aside("aside"), message("bad", 1, 1), message("gone", 1, 1), message("last", 1, 1))
	for range 2 {
		<-p.started // slow, and aside, which is answered now
	}
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 3 && d.VersionCounts("m")[0].Success == 1 }, 30*time.Second, time.Millisecond)
	close(p.hold)
	require.Equal(t, []string{
		"slow|m|true|",
		"absent||false|Request for unknown model: 'absent' is not found",
		"aside|m|true|",
		"bad|m|true|the model's own",
		"gone||false|Request for unknown model: 'm' version 1 is not at ready state",
		"last|m|true|",
	}, lines(t, s))
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 3, dispatch.Failed: 2, dispatch.Refused: 1}, resultsInTime(seen.count(t)))
}

// TestCancelledStreamIsNotExecuted: the queued requests of a stream that was
// cancelled are taken out of the queue, and other callers get their answers.
func TestCancelledStreamIsNotExecuted(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen, client := streamed(t, dispatch.Options{}, table(1, nil, p))
	other := openStream(t.Context(), t, client, message("other", 1, 1))
	require.Equal(t, "other", <-p.started)
	ctx, cancel := context.WithCancel(t.Context())
	gone := openStream(ctx, t, client, message("a", 1, 1), message("b", 1, 1), message("c", 1, 1))
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 3 }, 30*time.Second, time.Millisecond)
	cancel()
	_, err := gone.Recv()
	requireCode(t, codes.Canceled, err)
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 0 }, 30*time.Second, time.Millisecond)
	require.NoError(t, other.Send(message("another", 1, 1)))
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	close(p.hold)
	require.Equal(t, []string{"other|m|true|", "another|m|true|"}, lines(t, other))
	require.Equal(t, []int{1, 1}, p.executions())
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 2, dispatch.Cancelled: 3}, resultsInTime(seen.count(t)))
	for _, o := range seen.outcomes {
		if o.Result == dispatch.Cancelled {
			require.Equal(t, dispatch.GoneCancel, o.Reason)
		}
	}
}

// TestStreamsHaveDeadlines: a stream's deadline is that of its requests, and so is
// their timeout parameter: a request that cannot be in time any more is dropped.
func TestStreamsHaveDeadlines(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen, client := streamed(t, dispatch.Options{}, table(1, nil, p))
	drop := table(2, func(m *router.Model) { m.Late, m.SLO = policy.LatePolicy_LATE_POLICY_DROP, time.Hour }, p)
	require.NoError(t, d.Swap(t.Context(), drop))
	d.SetProfile(linear(100*time.Microsecond, time.Millisecond))
	s := openStream(t.Context(), t, client, message("first", 1, 1))
	<-p.started
	short := message("short", 1, 1)
	short.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 1000}}}
	require.NoError(t, s.Send(short))
	// On a busy machine a short deadline passes before the stream has reached
	// Conch.
	for patience := 50 * time.Millisecond; seen.arrivals() < 3; patience *= 2 {
		require.Less(t, patience, time.Minute, "nothing comes")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		late, err := client.ModelStreamInfer(ctx)
		if err == nil {
			err = late.Send(message("late", 1, 1))
		}
		for err == nil || errors.Is(err, io.EOF) { // the queue may have dropped it before, and Send fails on a stream that is over
			_, err = late.Recv()
		}
		requireCode(t, codes.DeadlineExceeded, err)
		cancel()
	}
	close(p.hold)
	require.Equal(t, []string{"first|m|true|", "short|m|true|Request timeout expired"}, lines(t, s))
	require.Equal(t, []int{1}, p.executions())
	require.Eventually(t, seen.settled, 30*time.Second, time.Millisecond)
	n := resultsInTime(seen.count(t))
	require.Equal(t, 1, n[dispatch.OK])
	require.Equal(t, seen.arrivals()-1, n[dispatch.Dropped]+n[dispatch.Cancelled])
}

// TestStreamIsReadNoFasterThanAnswered: a stream that owes its share is not read
// on, by requests and by bytes, and is answered in full.
func TestStreamIsReadNoFasterThanAnswered(t *testing.T) {
	const sent = 64
	small := func(id string) *tritonpb.ModelInferRequest { return message(id, 1, 1) }
	size := int64(proto.Size(small("00")))
	for name, test := range map[string]struct {
		limits          dispatch.Options
		request         func(id string) *tritonpb.ModelInferRequest
		most, mostBytes int64
	}{
		"requests":           {dispatch.Options{MaxQueuedRequests: 32}, small, 1 + 32/4, math.MaxInt64},
		"bytes":              {dispatch.Options{MaxQueuedBytes: 32 * size}, small, math.MaxInt64, (32/4 + 1) * size},
		"requests, unqueued": {dispatch.Options{MaxQueuedRequests: 32}, aside, 1 + 32/4, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			p.hold = make(chan struct{})
			d, seen, client := streamed(t, test.limits, table(1, nil, p))
			s := openStream(t.Context(), t, client)
			var want []string
			for i := range sent {
				require.NoError(t, s.Send(test.request(strconv.Itoa(i))))
				want = append(want, fmt.Sprint(i, "|m|true|"))
			}
			require.Eventually(t, func() bool { n, _ := d.UnderWay(); return n > 4 }, 30*time.Second, time.Millisecond)
			require.Never(t, func() bool { n, bytes := d.UnderWay(); return n > test.most || bytes > test.mostBytes }, 100*time.Millisecond, time.Millisecond)
			close(p.hold)
			require.Equal(t, want, lines(t, s))
			require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
			require.Equal(t, map[dispatch.Result]int{dispatch.OK: sent}, resultsInTime(seen.count(t)))
		})
	}
}

// resultsInTime counts late results as in time: how long a test takes is not
// known.
func resultsInTime(n map[dispatch.Result]int) map[dispatch.Result]int {
	if n[dispatch.Late] > 0 {
		n[dispatch.OK] += n[dispatch.Late]
		delete(n, dispatch.Late)
	}
	return n
}

// TestStreamAcrossAPartitionsDeath: queued requests survive the loss of a
// partition, as unary requests do, and so does a stream that owes no answers
// there.
func TestStreamAcrossAPartitionsDeath(t *testing.T) {
	p, q := newTriton(t), newTriton(t)
	p.started = make(chan string, 10)
	_, seen, client := streamed(t, dispatch.Options{}, table(1, nil, p, q))
	s := openStream(t.Context(), t, client, aside("aside")) // opens an upstream to one partition
	m, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "aside", m.InferResponse.Id)
	require.Equal(t, "aside", <-p.started)
	p.set(func() { p.hold = make(chan struct{}) })
	require.NoError(t, s.Send(message("queued", 1, 1)))
	require.Equal(t, "queued", <-p.started)
	p.kill()
	require.Equal(t, []string{"queued|m|true|"}, lines(t, s))
	require.Equal(t, []int{1}, q.executions())
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 2}, resultsInTime(seen.count(t)))
}

// TestStreamsOfModelsThatAreNotBatched: such requests are forwarded at once and
// one by one.
func TestStreamsOfModelsThatAreNotBatched(t *testing.T) {
	p := newTriton(t)
	p.started = make(chan string, 10)
	_, seen, client := streamed(t, dispatch.Options{}, table(1, func(m *router.Model) { m.Batchable = false }, p))
	s := openStream(t.Context(), t, client, message("a", 1, 1), message("b", 1, 1), message("c", 1, 1))
	require.Equal(t, []string{"a|m|true|", "b|m|true|", "c|m|true|"}, lines(t, s))
	require.Equal(t, []int{1, 1, 1}, p.executions())
	seen.count(t)
	for _, o := range seen.outcomes {
		require.True(t, o.PassedThrough)
	}
}

// TestAStreamMayEndWithTheErrorOfAModel: for a caller that asks for it the error of a model is the status of the call, in its turn. Triton's
// refusal of a request before a model receives it stays a message.
func TestAStreamMayEndWithTheErrorOfAModel(t *testing.T) {
	p := newTriton(t)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		switch r.Id {
		case "refused":
			return status.Error(codes.InvalidArgument, "unexpected inference input 'X' for model 'm'")
		case "failed":
			return status.Error(codes.NotFound, "no such picture")
		}
		return nil
	}
	_, _, client := streamed(t, dispatch.Options{}, table(1, nil, p))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "triton_grpc_error", "true")
	s := openStream(ctx, t, client, aside("first"), aside("refused"), aside("failed"))
	_ = s.Send(aside("last")) // the call may have ended before, and ends before this is answered
	for _, want := range []string{"", "unexpected inference input 'X' for model 'm'"} {
		m, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, want, m.ErrorMessage)
	}
	_, err := s.Recv()
	require.Equal(t, codes.NotFound, status.Code(err))
	require.Equal(t, "no such picture", status.Convert(err).Message())
}
