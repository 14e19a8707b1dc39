// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// began begins a request, and returns its answers, of which there must be one.
func began(ctx context.Context, t *testing.T, d *dispatch.Dispatcher, id int) <-chan error {
	answers := make(chan error, 2)
	d.Begin(ctx, nil, request(t, fmt.Sprint(id), 1, uint32(id), nil), func(_ *wire.Turn, r *batch.Response, err error) {
		if r != nil {
			r.Free()
		}
		answers <- err
	})
	return answers
}

// TestBeginDoesNotWait: one goroutine begins requests to a server that holds its answers. It queues, and is free to begin others. A caller that goes is
// answered at once, whether its request runs or is queued; the others are answered when the server answers. Nobody is answered twice.
func TestBeginDoesNotWait(t *testing.T) {
	p := newTriton(t)
	p.hold = make(chan struct{})
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	running, leave := context.WithCancel(t.Context())
	all := []<-chan error{began(running, t, d, 0)}
	for i := 1; i < 10; i++ {
		ctx := t.Context()
		if i == 5 {
			ctx = running
		}
		all = append(all, began(ctx, t, d, i))
	}
	leave()
	requireCode(t, codes.Canceled, <-all[0])
	requireCode(t, codes.Canceled, <-all[5])
	close(p.hold)
	for i, answers := range all {
		if i != 0 && i != 5 {
			require.NoError(t, <-answers)
		}
	}
	gone, end := context.WithCancel(t.Context())
	end()
	requireCode(t, codes.Canceled, <-began(gone, t, d, 10))
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 8, dispatch.Cancelled: 3}, resultsInTime(seen.count(t)))
	for _, answers := range all {
		require.Empty(t, answers)
	}
}

// TestDeadlinesOfWhatWaits: a caller's deadline ends its request where it waits in the queue, and no goroutine waits for that.
func TestDeadlinesOfWhatWaits(t *testing.T) {
	p := newTriton(t)
	p.hold = make(chan struct{})
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	first := began(t.Context(), t, d, 0)
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	requireCode(t, codes.DeadlineExceeded, <-began(soon, t, d, 1))
	close(p.hold)
	require.NoError(t, <-first)
}

// TestAPanicOfWhoTakesAnAnswerIsItsOwn: the others of the batch are answered, and the place is free again.
func TestAPanicOfWhoTakesAnAnswerIsItsOwn(t *testing.T) {
	p := newTriton(t)
	p.hold = make(chan struct{})
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	all := []<-chan error{began(t.Context(), t, d, 0), began(t.Context(), t, d, 1)}
	d.Begin(t.Context(), nil, request(t, "2", 1, 2, nil), func(*wire.Turn, *batch.Response, error) { panic("a fault") })
	all = append(all, began(t.Context(), t, d, 3))
	close(p.hold)
	for _, answers := range all {
		require.NoError(t, <-answers)
	}
	require.NoError(t, infer(t.Context(), t, d, 4, 1, nil))
	require.Eventually(t, func() bool { n, _ := d.UnderWay(); return n == 0 }, 30*time.Second, time.Millisecond)
}

// TestAFailedSchedulerLeavesNobodyWaiting: requests that were queued when the scheduler fails are forwarded.
func TestAFailedSchedulerLeavesNobodyWaiting(t *testing.T) {
	p := newTriton(t)
	p.hold = make(chan struct{})
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	var all []<-chan error
	for i := range 5 {
		all = append(all, began(t.Context(), t, d, i))
	}
	dispatch.BreakScheduler(d)
	all = append(all, began(t.Context(), t, d, 5))
	require.Error(t, d.Fault())
	close(p.hold)
	for _, answers := range all {
		require.NoError(t, <-answers)
	}
}
