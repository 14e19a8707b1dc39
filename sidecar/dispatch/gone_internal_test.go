// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// TestDeadlinesThatClientsRoundUp: a client of gRPC's C core with 12.34 s sends 12.4 s, and cancels 60 ms before that.
func TestDeadlinesThatClientsRoundUp(t *testing.T) {
	came := time.Now()
	for name, c := range map[string]struct {
		deadline, gone time.Duration
		want           string
	}{
		"rounded to tenths":  {12400 * time.Millisecond, 12340 * time.Millisecond, GoneDeadline},
		"rounded to seconds": {101 * time.Second, 100_100 * time.Millisecond, GoneDeadline},
		"not rounded":        {50 * time.Millisecond, 49 * time.Millisecond, GoneDeadline},
		"in the middle":      {12400 * time.Millisecond, 6 * time.Second, GoneCancel},
		"soon before":        {100 * time.Millisecond, 80 * time.Millisecond, GoneCancel},
	} {
		ctx, cancel := context.WithDeadline(context.Background(), came.Add(c.deadline))
		require.Equal(t, c.want, goneReason(ctx, came, came.Add(c.gone)), name)
		cancel()
	}
}

// TestWhoLeavesWithTheAnswerAtHandIsCounted: a call is answered after its caller's context has ended and before finish. It is counted once, as
// any other call is. The moment is too short for a test from outside.
func TestWhoLeavesWithTheAnswerAtHandIsCounted(t *testing.T) {
	d := New(Options{})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	for _, answeredFirst := range []bool{true, false} {
		c := &call{ticket: ticket{d: d, ctx: t.Context(), model: &model{name: "m"}, tally: newTally("1", 1)}, req: &batch.Request{Model: "m"}}
		await := c.awaited()
		c.phase.Store(running)
		c.model.counts.arrive(d.now())
		served, left := answer{rows: 1}, answer{err: status.FromContextError(context.Canceled).Err(), result: Cancelled}
		if answeredFirst {
			d.answer(nil, c, served)
			require.False(t, d.queues.leave(c), "it has its answer")
			_, err := d.finish(c, await())
			require.NoError(t, err)
		} else {
			require.True(t, d.queues.leave(c))
			_, err := d.finish(c, left)
			require.Error(t, err)
			d.answer(nil, c, served)
		}
		require.Equal(t, uint64(1), c.tally.success.Load()+c.tally.failed.Load(), "answered first: %v", answeredFirst)
	}
}
