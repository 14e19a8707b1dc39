// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// countedPool counts the buffers that are not put back, and spoils those that are.
type countedPool struct{ out atomic.Int64 }

func (p *countedPool) Get(n int) *[]byte {
	p.out.Add(1)
	b := make([]byte, n, max(n, 2048)) // grpc does not put back what is smaller than a kilobyte
	return &b
}

func (p *countedPool) Put(b *[]byte) {
	if p.out.Add(-1) < 0 {
		panic("a buffer was put back twice")
	}
	for i := range *b {
		(*b)[i] = 0xee
	}
}

// panicking is an Observer that panics at times.
type panicking struct {
	*recorder
	calls atomic.Int64
}

func (p *panicking) Executed(e dispatch.Execution) {
	p.recorder.Executed(e)
	if p.calls.Add(1)%17 == 0 {
		panic("a fault of an observer's")
	}
}

// TestTurmoil: requests whose callers leave in every state, to servers that fail, refuse and end, under tables that change. Each has one answer, which is its
// own, and nothing is held in the end: no buffer, no lease, no place of a limit.
func TestTurmoil(t *testing.T) {
	servers := []*triton{newTriton(t), newTriton(t), newTriton(t)}
	for i, p := range servers {
		p.takes = time.Duration(i) * 300 * time.Microsecond
		p.refuse = func(r *tritonpb.ModelInferRequest) error {
			switch n := rand.IntN(60); {
			case n == 0:
				return status.Error(codes.Internal, "a fault of the model's")
			case n == 1:
				return status.Error(codes.InvalidArgument, "refused")
			}
			return nil
		}
	}
	requests, answers := new(countedPool), new(countedPool)
	seen := &panicking{recorder: &recorder{}}
	d := dispatch.New(dispatch.Options{Observer: seen, Forward: forward.Options{Pool: answers}, OutageWait: 300 * time.Millisecond})
	require.NoError(t, d.Swap(t.Context(), table(1, nil, servers...)))

	ends := time.Now().Add(time.Second)
	var begun, answered atomic.Int64
	var wrong sync.Map
	var running sync.WaitGroup
	for g := range 6 {
		running.Go(func() {
			for i := uint32(0); time.Now().Before(ends); i++ {
				seed, rows := uint32(g)<<24|i, 1+rand.IntN(10)
				id := fmt.Sprint(seed)
				m := message(id, rows, seed)
				want := string(m.RawInputContents[0])
				if rand.IntN(20) == 0 {
					m.Parameters = map[string]*tritonpb.InferParameter{"priority": {ParameterChoice: &tritonpb.InferParameter_Uint64Param{Uint64Param: 1}}}
				}
				encoded, err := proto.Marshal(m)
				if err != nil {
					panic(err)
				}
				buf := requests.Get(len(encoded) + 2000)
				copy(*buf, encoded)
				*buf = (*buf)[:len(encoded)]
				r, err := batch.ReadRequest(mem.BufferSlice{mem.NewBuffer(buf, requests)})
				if err != nil {
					panic(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				switch rand.IntN(5) {
				case 0:
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.IntN(4000))*time.Microsecond)
				case 1:
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				case 2:
					if rand.IntN(4) == 0 {
						cancel()
					}
				}
				begun.Add(1)
				var times atomic.Int32
				d.Begin(ctx, nil, r, func(_ *wire.Turn, a *batch.Response, err error) {
					if times.Add(1) > 1 {
						wrong.Store(id, "answered twice")
						return
					}
					if a != nil {
						if out := a.Output("OUT"); out == nil || a.ID != id || string(out.Data.Materialize()) != want {
							wrong.Store(id, fmt.Sprintf("an answer to %q: %v", a.ID, a.Err()))
						}
						a.Free()
					}
					cancel()
					answered.Add(1)
				})
				if rand.IntN(8) == 0 {
					time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				}
				for begun.Load()-answered.Load() > 200 && time.Now().Before(ends.Add(10*time.Second)) {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	running.Go(func() {
		for n := uint64(2); time.Now().Before(ends); n++ {
			time.Sleep(40 * time.Millisecond)
			switch n % 3 {
			case 0:
				servers[0].kill()
				time.Sleep(30 * time.Millisecond)
				servers[0].restart()
			case 1:
				_ = d.Swap(context.Background(), table(n, nil, servers[1:]...))
			default:
				_ = d.Swap(context.Background(), table(n, nil, servers...))
			}
		}
	})
	running.Wait()
	require.Eventually(t, func() bool { return begun.Load() == answered.Load() }, time.Minute, time.Millisecond, "%d of %d are answered", answered.Load(), begun.Load())
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		for _, p := range d.Partitions() {
			if p.Leases > 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond, "a lease is held")
	require.NoError(t, d.Close())
	wrong.Range(func(id, what any) bool { t.Error(id, what); return true })
	require.Zero(t, dispatch.EndedTwice(d))
	require.Zero(t, requests.out.Load(), "buffers of requests")
	require.Zero(t, answers.out.Load(), "buffers of answers")
	t.Log("requests", begun.Load(), seen.count(t))
}
