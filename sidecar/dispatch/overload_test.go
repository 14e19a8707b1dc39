// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"math/rand/v2"
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
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// spasmodic is a partition on virtual time: one execution in five takes much longer than l(b).
type spasmodic struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	mu     sync.Mutex // one execution at a time
	random *rand.Rand
}

// A model of 8 rows in 100 ms, 116 ms with the mean of its spasms: 69 a second are the most.
const (
	spasmodicAlpha = 10 * time.Millisecond
	spasmodicBeta  = 20 * time.Millisecond
	spasm          = 80 * time.Millisecond
	spasms         = .2
	spasmodicSLO   = 400 * time.Millisecond
	spasmodicMost  = 8 / .116
)

func (p *spasmodic) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := spasmodicBeta + time.Duration(r.Inputs[0].Shape[0])*spasmodicAlpha
	if p.random.Float64() < spasms {
		took += spasm
	}
	time.Sleep(took)
	return &tritonpb.ModelInferResponse{
		ModelName: r.ModelName, ModelVersion: "1", Id: r.Id,
		Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "OUT", Datatype: "FP32", Shape: r.Inputs[0].Shape}},
		RawOutputContents: r.RawInputContents,
	}, nil
}

// spasmodically serves a spasmodic model by a dispatcher with a usual profile of l(b): mean plus one deviation, of which 16 ms and 32 ms are the
// spasms'.
func spasmodically(t *testing.T) *dispatch.Dispatcher {
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	t.Cleanup(server.Stop)
	tritonpb.RegisterGRPCInferenceServiceServer(server, &spasmodic{random: rand.New(rand.NewPCG(1, 2))})
	go func() { _ = server.Serve(l) }()
	d, _ := newDispatcher(t, dispatch.Options{Clock: clock.Timers(), Forward: forward.Options{DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
	}}}, table(1, func(m *router.Model) { m.SLO, m.Late = spasmodicSLO, policy.LatePolicy_LATE_POLICY_DROP }, &triton{address: "127.0.0.1:1"}))
	d.SetProfile(linear(spasmodicAlpha, spasmodicBeta+16*time.Millisecond+32*time.Millisecond))
	return d
}

// offer makes Poisson arrivals for half a virtual minute and returns goodput in requests per second, and the part that is bad.
func offer(t *testing.T, d *dispatch.Dispatcher, rate float64) (goodput, bad float64) {
	const length = 30 * time.Second
	random := rand.New(rand.NewPCG(3, 4))
	var all sync.WaitGroup
	var sent, good atomic.Int64
	for end := time.Now().Add(length); time.Now().Before(end); {
		time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		sent.Add(1)
		r := request(t, "r", 1, 1, nil)
		all.Go(func() {
			start := time.Now()
			answer, err := d.Infer(t.Context(), r)
			if err != nil {
				return
			}
			answer.Free()
			if time.Since(start) <= spasmodicSLO {
				good.Add(1)
			}
		})
	}
	all.Wait()
	return float64(good.Load()) / length.Seconds(), 1 - float64(good.Load())/float64(sent.Load())
}

// TestOverload: at multiples of a partition's capacity the goodput stays at the capacity, although one execution in five takes longer than
// predicted. No request is lost at loads below the capacity.
func TestOverload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := spasmodically(t)
		_, bad := offer(t, d, .6*spasmodicMost)
		require.Less(t, bad, .01, "a load that it can do")
		peak := 0.0
		for _, of := range []float64{.9, 1.1} {
			goodput, _ := offer(t, d, of*spasmodicMost)
			peak = max(peak, goodput)
		}
		for _, times := range []float64{3, 10} {
			goodput, _ := offer(t, d, times*peak)
			counts, _ := d.Counts("m")
			t.Logf("%.0f times the peak of %.1f req/s: %.1f req/s, margin %v", times, peak, goodput, counts.Margin)
			require.Greater(t, goodput, .95*peak, "%.0f times the peak", times)
		}
		_, bad = offer(t, d, .6*spasmodicMost)
		require.Less(t, bad, .01, "a load that it can do, right after")
	})
}
