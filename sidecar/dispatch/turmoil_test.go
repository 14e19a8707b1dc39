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

// turmoil is requests whose callers leave in every state, for a second, to servers that fail, refuse and end. Each has one answer, which is its own, and nothing is held
// in the end: no buffer, no lease, no place of a limit.
type turmoil struct {
	ends              time.Time
	requests, answers countedPool
	begun, answered   atomic.Int64
	wrong             sync.Map
	running           sync.WaitGroup
}

// inTurmoil are servers for it.
func inTurmoil(t *testing.T) []*triton {
	servers := []*triton{newTriton(t), newTriton(t), newTriton(t)}
	for i, p := range servers {
		p.takes = time.Duration(i) * 300 * time.Microsecond
		p.refuse = func(*tritonpb.ModelInferRequest) error {
			switch n := rand.IntN(60); {
			case n == 0:
				return status.Error(codes.Internal, "a fault of the model's")
			case n == 1:
				return status.Error(codes.InvalidArgument, "refused")
			}
			return nil
		}
	}
	return servers
}

// ask begins the callers, whose requests are changed by change.
func (u *turmoil) ask(d *dispatch.Dispatcher, change func(*tritonpb.ModelInferRequest)) {
	u.ends = time.Now().Add(time.Second)
	for g := range 6 {
		u.running.Go(func() {
			for i := uint32(0); time.Now().Before(u.ends); i++ {
				u.one(d, uint32(g)<<24|i, change)
				if rand.IntN(8) == 0 {
					time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				}
				for u.begun.Load()-u.answered.Load() > 200 && time.Now().Before(u.ends.Add(10*time.Second)) {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
}

// one begins one request.
func (u *turmoil) one(d *dispatch.Dispatcher, seed uint32, change func(*tritonpb.ModelInferRequest)) {
	id := fmt.Sprint(seed)
	m := message(id, 1+rand.IntN(10), seed)
	change(m)
	want := string(m.RawInputContents[0])
	encoded, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	buf := u.requests.Get(len(encoded) + 2000)
	copy(*buf, encoded)
	*buf = (*buf)[:len(encoded)]
	r, err := batch.ReadRequest(mem.BufferSlice{mem.NewBuffer(buf, &u.requests)})
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
	u.begun.Add(1)
	var times atomic.Int32
	d.Begin(ctx, nil, r, func(_ *wire.Turn, a *batch.Response, _ error) {
		if times.Add(1) > 1 {
			u.wrong.Store(id, "answered twice")
			return
		}
		if a != nil {
			right := len(a.Outputs) > 0 && a.ID == id
			for i := range a.Outputs {
				right = right && string(a.Outputs[i].Data.Materialize()) == want
			}
			if !right {
				u.wrong.Store(id, fmt.Sprintf("an answer of %s to %q: %v", m.ModelName, a.ID, a.Err()))
			}
			a.Free()
		}
		cancel()
		u.answered.Add(1)
	})
}

// over waits until all have their answers, and requires that nothing is held.
func (u *turmoil) over(t *testing.T, d *dispatch.Dispatcher) {
	t.Helper()
	u.running.Wait()
	require.Eventually(t, func() bool { return u.begun.Load() == u.answered.Load() }, time.Minute, time.Millisecond, "%d of %d are answered", u.answered.Load(), u.begun.Load())
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		for _, p := range d.Partitions() {
			if p.Leases > 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond, "a lease is held")
	for _, name := range []string{"m", "n", "e", "split"} {
		if c, ok := d.Counts(name); ok {
			require.Zero(t, c.UnderWay, name)
			require.Zero(t, c.Waiting, name)
		}
	}
	require.NoError(t, d.Close())
	u.wrong.Range(func(id, what any) bool { t.Error(id, what); return true })
	require.Zero(t, dispatch.EndedTwice(d))
	require.Zero(t, u.requests.out.Load(), "buffers of requests")
	require.Zero(t, u.answers.out.Load(), "buffers of answers")
}

// TestTurmoil: tables change meanwhile, and an observer panics.
func TestTurmoil(t *testing.T) {
	servers, u := inTurmoil(t), &turmoil{}
	seen := &panicking{recorder: &recorder{}}
	d := dispatch.New(dispatch.Options{Observer: seen, Forward: forward.Options{Pool: &u.answers}, OutageWait: 300 * time.Millisecond})
	require.NoError(t, d.Swap(t.Context(), table(1, nil, servers...)))
	u.ask(d, func(m *tritonpb.ModelInferRequest) {
		if rand.IntN(20) == 0 {
			m.Parameters = map[string]*tritonpb.InferParameter{"priority": {ParameterChoice: &tritonpb.InferParameter_Uint64Param{Uint64Param: 1}}}
		}
	})
	u.running.Go(func() {
		for n := uint64(2); time.Now().Before(u.ends); n++ {
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
	u.over(t, d)
	t.Log("requests", u.begun.Load(), seen.count(t))
}
