// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// right is one that a test gives and takes. Another conch answers as a triton does.
type right struct {
	mu       sync.Mutex
	unsure   chan struct{}
	anothers bool
	other    *triton
	fails    error
}

func (r *right) Look() (<-chan struct{}, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsure, r.anothers
}

func (r *right) HandOn(ctx context.Context, request mem.BufferSlice) (mem.BufferSlice, error) {
	defer request.Free()
	if r.fails != nil {
		return nil, r.fails
	}
	var in tritonpb.ModelInferRequest
	if err := proto.Unmarshal(request.Materialize(), &in); err != nil {
		return nil, err
	}
	out, err := r.other.ModelInfer(ctx, &in)
	if err != nil {
		return nil, err
	}
	text, err := proto.Marshal(out)
	return mem.BufferSlice{mem.SliceBuffer(text)}, err
}

// doubts has it not be known who executes.
func (r *right) doubts() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure = make(chan struct{})
}

// knows ends that.
func (r *right) knows(anothers bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.unsure)
	r.unsure, r.anothers = nil, anothers
}

// alone is how many rows a request has that runs outside the queue: more than a batch has.
const alone = 9

// TestWhileItIsNotKnownWhoExecutes: a conch that was paused for longer than its lease executes nothing, in the queue or outside it, before it knows that the partitions are
// its own. What waits is executed then, batched as before.
func TestWhileItIsNotKnownWhoExecutes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 1)
		r := &right{}
		o.Right = r
		d, _ := newDispatcher(t, o, table(1, nil, parts...))
		require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))
		r.doubts()
		var all sync.WaitGroup
		for i := range uint32(4) {
			all.Go(func() { require.NoError(t, infer(t.Context(), t, d, 2+i, 1, nil)) })
		}
		all.Go(func() { require.NoError(t, infer(t.Context(), t, d, 9, alone, nil)) })
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		requireCode(t, codes.DeadlineExceeded, infer(short, t, d, 10, alone, nil))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Len(t, parts[0].executions(), 1)
		r.knows(false)
		all.Wait()
		require.Less(t, len(parts[0].executions()), 6, "requests of the queue still share executions")
	})
}

// TestWhatIsKeptBackDoesNotHang: a server to which nothing was sent, since it is not known who executes, is not taken for one that hangs, and what executes afterwards
// has all its time.
func TestWhatIsKeptBackDoesNotHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 1)
		r := &right{}
		o.Right, o.HangFloor = r, 5*time.Second
		o.Hung = func(partition string, cause error) { t.Errorf("partition %s: %v", partition, cause) }
		parts[0].takes = 4 * time.Second
		d, _ := newDispatcher(t, o, table(1, nil, parts...))
		d.SetProfile(linear(0, 10*time.Millisecond))
		r.doubts()
		var all sync.WaitGroup
		all.Go(func() { require.NoError(t, infer(t.Context(), t, d, 1, 1, nil)) })
		time.Sleep(20 * time.Second)
		require.Empty(t, parts[0].executions())
		r.knows(false)
		all.Wait()
	})
}

// TestAnotherConchExecutes: what this one has accepted goes to the other one, each request once, and nothing to a server.
func TestAnotherConchExecutes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 2)
		r := &right{other: parts[1]}
		o.Right = r
		d, seen := newDispatcher(t, o, table(1, nil, parts[0]))
		r.doubts()
		var all sync.WaitGroup
		for i := range uint32(4) {
			all.Go(func() { require.NoError(t, infer(t.Context(), t, d, i, 1, nil)) })
		}
		all.Go(func() { require.NoError(t, infer(t.Context(), t, d, 9, alone, nil)) })
		time.Sleep(10 * time.Second)
		r.knows(true)
		all.Wait()
		require.NoError(t, infer(t.Context(), t, d, 10, 1, nil))
		require.Empty(t, parts[0].executions())
		require.Len(t, parts[1].executions(), 6)
		r.fails = status.Error(codes.Unavailable, "no replica is known to own the models")
		requireCode(t, codes.Unavailable, infer(t.Context(), t, d, 11, 1, nil))
		_, _, err := d.Pick(t.Context(), "m")
		requireCode(t, codes.Unavailable, err)
		require.Equal(t, 7, seen.ended())
	})
}

// TestAModelThatIsRemovedWhileItIsNotKnownWhoExecutes: its queued requests have leases of the table that had it, and are not executed either before that is known.
func TestAModelThatIsRemovedWhileItIsNotKnownWhoExecutes(t *testing.T) {
	for name, anothers := range map[string]bool{"this one": false, "another": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, o := inBubble(t, 2)
				r := &right{other: parts[1]}
				o.Right = r
				d, _ := newDispatcher(t, o, table(1, nil, parts[0]))
				r.doubts()
				const requests = 20
				var all sync.WaitGroup
				for i := range uint32(requests) {
					all.Go(func() { require.NoError(t, infer(t.Context(), t, d, i, 1, nil)) })
				}
				synctest.Wait()
				without := table(2, nil, parts[0])
				delete(without.Models, "m")
				require.NoError(t, d.Swap(t.Context(), without))
				drained := d.Drained("p"+parts[0].address, "m")
				time.Sleep(time.Second)
				require.Empty(t, parts[0].executions())
				r.knows(anothers)
				all.Wait()
				<-drained
				require.Len(t, parts[index(anothers)].executions(), requests)
				require.Empty(t, parts[1-index(anothers)].executions())
			})
		})
	}
}

func index(is bool) int {
	if is {
		return 1
	}
	return 0
}

// TestCloseEndsWhatIsHandedOn: an owner that does not answer keeps nobody from ending.
func TestCloseEndsWhatIsHandedOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 2)
		parts[1].hold = make(chan struct{})
		o.Right = &right{other: parts[1], anothers: true}
		d, seen := newDispatcher(t, o, table(1, nil, parts[0]))
		var all sync.WaitGroup
		for _, rows := range []int{1, alone} {
			all.Go(func() { requireCode(t, codes.Unavailable, infer(t.Context(), t, d, 1, rows, nil)) })
		}
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, d.Close())
		all.Wait()
		require.Zero(t, time.Since(began))
		require.Equal(t, 2, seen.ended())
	})
}
