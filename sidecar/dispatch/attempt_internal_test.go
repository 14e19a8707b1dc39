// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// A batch carries the trace context of the first of its calls that has one, and no other metadata of its callers.
func TestABatchCarriesATrace(t *testing.T) {
	came := func(pairs ...string) *call {
		return &call{ticket: ticket{ctx: metadata.NewIncomingContext(t.Context(), metadata.Pairs(pairs...))}}
	}
	const a, b = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-00"
	for _, c := range []struct {
		name  string
		calls []*call
		want  metadata.MD
	}{
		{"none has one", []*call{came("x", "1"), {ticket: ticket{ctx: t.Context()}}}, nil},
		{"the second has one", []*call{came("x", "1"), came("traceparent", b, "tracestate", "s=1", "x", "2"), came("traceparent", a)},
			metadata.Pairs("traceparent", b, "tracestate", "s=1")},
		{"the first cannot be read", []*call{came("traceparent", "00-a"), came("traceparent", b)}, metadata.Pairs("traceparent", b)},
		{"without a state", []*call{came("traceparent", a), came()}, metadata.Pairs("traceparent", a)},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := metadata.FromOutgoingContext((&attempt{calls: c.calls}).context(t.Context()))
			require.Equal(t, c.want, got)
		})
	}
}

// freed counts the buffers that were given back.
type freed struct{ n int }

func (f *freed) Get(n int) *[]byte { b := make([]byte, n, 4096); return &b }
func (f *freed) Put(*[]byte)       { f.n++ }

// The moment between the decision to run a batch and the run itself is too short
// for a test from outside.
func TestWhoLeftSinceTheDecisionIsLeftOut(t *testing.T) {
	f := &freed{}
	callOf := func(rows int, at phase) *call {
		c := &call{ticket: ticket{rows: rows}, req: &batch.Request{Wire: mem.BufferSlice{mem.NewBuffer(f.Get(4096), f)}}}
		c.phase.Store(at)
		return c
	}
	stays, also := callOf(1, running), callOf(2, running)
	b := &attempt{rows: 10, calls: []*call{callOf(3, left), stays, callOf(4, left), also}}
	gone := 0
	b.withoutGone(func(*call) { gone++ })
	require.Equal(t, 2, gone, "each of them is counted")
	require.Equal(t, []*call{stays, also}, b.calls)
	require.Equal(t, 3, b.rows)
	require.Equal(t, 2, f.n, "the run's references to what has gone are given back")
}

// TestWhatWasNotSentIsNoAttempt: a call that was lost once is dispatched to a partition that goes down at that moment, before anything is sent to
// it. The call waits for the next partition, because it has not crashed this one.
func TestWhatWasNotSentIsNoAttempt(t *testing.T) {
	d := New(Options{})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	m := &router.Model{Name: "m", Config: &tritonpb.ModelConfig{Name: "m", MaxBatchSize: 8}, Versions: []string{"1"}, Batchable: true, Places: []router.Place{{Partition: "p"}}}
	require.NoError(t, d.Swap(t.Context(), &router.Table{
		Revision: 1, Models: map[string]*router.Model{"m": m},
		Partitions: []*router.PartitionSpec{{ID: "p", GPU: "g", GPUType: "T", ThreadPercentage: 100, Endpoint: router.Endpoint{GRPC: "127.0.0.1:1"}}},
	}))
	d.SetPartitionState("p", false, "its server ended")
	q := d.queues
	var partition *router.Partition
	for p := range q.executors {
		partition = p
	}
	for _, sent := range []bool{false, true} {
		c := &call{ticket: ticket{d: d, ctx: t.Context(), model: q.model("m"), rows: 1}, req: &batch.Request{Model: "m"}, executes: q.model("m"), retried: true}
		c.awaited()
		c.phase.Store(running)
		c.queued.Tag, c.queued.Rows, c.queued.Deadline = c, 1, queue.Never
		b := &attempt{model: c.model, partition: partition, on: q.executors[partition][0], calls: []*call{c}, rows: 1}
		if !sent {
			b.unleased = errors.New("it is down")
		}
		d.decide(nil, b, result{ending: lost, err: errors.New("it is down")})
		require.Equal(t, sent, c.is(done), "sent: %v", sent)
		require.Equal(t, !sent, c.is(queued), "sent: %v", sent)
	}
}

// TestAnAttemptEndsOnlyTheCallsThatItHas: an attempt panics when its calls are elsewhere: queued again, in the next attempt, or passed through. These
// are ended there.
func TestAnAttemptEndsOnlyTheCallsThatItHas(t *testing.T) {
	d := New(Options{})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.NoError(t, d.Swap(t.Context(), manyModels(1, 1, 1, nil)))
	q := d.queues
	a := &attempt{model: q.model("m0"), partition: q.numbered[1].partition, on: q.numbered[1]}
	callIn := func(at *attempt) *call {
		c := &call{ticket: ticket{d: d, ctx: t.Context(), model: a.model}, req: &batch.Request{Model: "m0"}, at: at}
		c.phase.Store(running)
		a.calls = append(a.calls, c)
		return c
	}
	its, next, passed := callIn(a), callIn(&attempt{}), callIn(nil)
	q.complete(nil, a)
	require.True(t, its.is(done))
	require.True(t, next.is(running))
	require.True(t, passed.is(running))
	require.True(t, q.leave(next), "its caller may still leave")

	its.phase.Store(running)
	run, marked := q.takeBegun(a)
	require.Equal(t, []*call{its}, run)
	require.Empty(t, marked)
	run, _ = q.takeBegun(a)
	require.Empty(t, run, "it is forwarded once")
}

// TestAPanicAfterAnAttemptsEndIsLogged, of an attempt outside the queue, whose call has its answer.
func TestAPanicAfterAnAttemptsEndIsLogged(t *testing.T) {
	var log bytes.Buffer
	d := New(Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	func() {
		defer d.mend(&attempt{passed: true, concluded: true})
		panic("a fault of the test's")
	}()
	require.Contains(t, log.String(), "a fault of the test's")
}
