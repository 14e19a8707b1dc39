// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// TestHalvesAreByDeadline: the half of a failed batch that is executed first has the nearest deadlines, in whichever order its requests were executed.
func TestHalvesAreByDeadline(t *testing.T) {
	d := New(Options{Clock: clock.Timers()})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.NoError(t, d.Swap(t.Context(), manyModels(1, 1, 1, nil)))
	d.SetPartitionState("p0", false, "a test") // what is queued waits
	q := d.queues
	m := q.model("m0")
	a := &attempt{model: m, on: q.numbered[1], over: true}
	for _, seconds := range []time.Duration{3, 1, 4, 2, 5} {
		c := d.newCall(t.Context(), &batch.Request{Model: "m0"})
		c.moveTo(m)
		c.executes, c.then = m, func(*wire.Turn, answer) {}
		c.queued = queue.Request{Arrival: q.now(), Deadline: queue.Time(seconds * time.Second), Rows: 1, Tag: c}
		c.set(running)
		a.calls = append(a.calls, c)
	}
	unqueued, gone := q.again(a, halves)
	require.Empty(t, unqueued)
	require.Empty(t, gone)
	deadlines := func(p *piece) (all []time.Duration) {
		for _, c := range p.calls {
			all = append(all, c.queued.Deadline.Duration()/time.Second)
		}
		return all
	}
	nearest := slices.MinFunc(a.calls, func(x, y *call) int { return int(x.queued.Deadline - y.queued.Deadline) })
	require.Equal(t, []time.Duration{1, 2, 3}, deadlines(nearest.piece))
	require.Equal(t, []time.Duration{4, 5}, deadlines(nearest.piece.sibling))
}
