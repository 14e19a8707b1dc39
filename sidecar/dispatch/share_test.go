// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// fixed is a partition on virtual time that takes 100 ms for an execution, one at a time.
type fixed struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	mu sync.Mutex
}

func (p *fixed) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	return &tritonpb.ModelInferResponse{
		ModelName: r.ModelName, ModelVersion: "1", Id: r.Id,
		Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "OUT", Datatype: "FP32", Shape: r.Inputs[0].Shape}},
		RawOutputContents: r.RawInputContents,
	}, nil
}

// TestAnOverloadedModelLeavesRoomForOthers: model m gets twice what its partition can do, and its late requests, which are served later, pile up
// until they fill its share. No request of model n, which has a partition of its own that is nearly idle, is refused, although a burst of them takes
// more than its share.
func TestAnOverloadedModelLeavesRoomForOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		listeners := map[string]*bufconn.Listener{"127.0.0.1:1": bufconn.Listen(1 << 20), "127.0.0.1:2": bufconn.Listen(1 << 20)}
		for _, l := range listeners {
			server := grpc.NewServer()
			t.Cleanup(server.Stop)
			tritonpb.RegisterGRPCInferenceServiceServer(server, &fixed{})
			go func() { _ = server.Serve(l) }()
		}
		routes := table(1, nil, &triton{address: "127.0.0.1:1"}, &triton{address: "127.0.0.1:2"})
		m := routes.Models["m"]
		n := *m
		n.Name, n.Config = "n", modelConfig("n")
		n.Places = m.Places[1:]
		m.Places = m.Places[:1]
		routes.Models["n"] = &n
		for _, model := range routes.Models {
			model.SLO = 400 * time.Millisecond
		}
		d, _ := newDispatcher(t, dispatch.Options{Clock: clock.Timers(), MaxQueuedRequests: 400, Forward: forward.Options{DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return listeners[address].DialContext(ctx)
			}),
		}}}, routes)
		for _, name := range []string{"m", "n"} {
			profile := linear(0, 100*time.Millisecond)
			profile.Model = name
			d.SetProfile(profile)
		}
		const length = 30 * time.Second
		var all sync.WaitGroup
		var refused [2]atomic.Int64
		load := func(model string, every time.Duration, refused *atomic.Int64) {
			for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(every) {
				r := request(t, "r", 1, 1, func(r *tritonpb.ModelInferRequest) { r.ModelName = model })
				all.Go(func() {
					answer, err := d.Infer(t.Context(), r)
					if err != nil {
						refused.Add(1)
						return
					}
					answer.Free()
				})
			}
		}
		all.Go(func() { load("m", time.Second/160, &refused[0]) }) // 8 rows in 100 ms: 80 a second are the most
		all.Go(func() { load("n", time.Second/5, &refused[1]) })
		time.Sleep(length / 2)
		for range 110 { // the share of n is 100: m's late requests have left the common half free
			r := request(t, "burst", 1, 1, func(r *tritonpb.ModelInferRequest) { r.ModelName = "n" })
			all.Go(func() {
				answer, err := d.Infer(t.Context(), r)
				if err != nil {
					refused[1].Add(1)
					return
				}
				answer.Free()
			})
		}
		all.Wait()
		require.Positive(t, refused[0].Load(), "m is overloaded")
		require.Zero(t, refused[1].Load())
	})
}

// TestLateRequestsOfAMemberAreItsOwn: member m of a merge group gets twice what the group can do, and its late requests pile up. Those of member n, which are few,
// do not keep a burst of n's requests from the common half.
func TestLateRequestsOfAMemberAreItsOwn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 1)
		turn := make(chan struct{}, 1) // one execution at a time
		parts[0].asked = func(context.Context, *tritonpb.ModelInferRequest) {
			turn <- struct{}{}
			time.Sleep(100 * time.Millisecond)
			<-turn
		}
		routes := merged(1, parts...)
		for _, model := range routes.Models {
			model.SLO = 400 * time.Millisecond
		}
		o.MaxQueuedRequests = 400
		d, _ := newDispatcher(t, o, routes)
		profile := linear(0, 100*time.Millisecond)
		profile.Model = "g"
		d.SetProfile(profile)
		const length = 10 * time.Second
		var all sync.WaitGroup
		var refused [2]atomic.Int64
		send := func(member int) {
			all.Go(func() {
				if infer(t.Context(), t, d, 1, 1, of(member)) != nil {
					refused[member].Add(1)
				}
			})
		}
		for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(time.Second / 160) { // 8 rows in 100 ms: 80 a second are the most
			send(0)
		}
		require.Positive(t, refused[0].Load(), "m is overloaded")
		for range 110 { // the share of n is 100
			send(1)
		}
		all.Wait()
		require.Zero(t, refused[1].Load())
	})
}
