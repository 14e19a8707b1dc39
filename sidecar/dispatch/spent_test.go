// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// identified keeps what outcomes are identified by.
type identified struct {
	recorder
	ids, traces []string
}

func (r *identified) Finished(o dispatch.Outcome) {
	r.mu.Lock()
	r.ids, r.traces = append(r.ids, o.Identity.ID()), append(r.traces, o.Identity.TraceID())
	r.mu.Unlock()
	r.recorder.Finished(o)
}

// TestWhereARequestSpentItsTime: the times have a lower bound each that the test itself measures, and are parts of the latency.
func TestWhereARequestSpentItsTime(t *testing.T) {
	const delay = 20 * time.Millisecond
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	seen := &identified{}
	d := dispatch.New(dispatch.Options{Observer: seen})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.NoError(t, d.Swap(t.Context(), table(1, func(m *router.Model) {
		m.SLO, m.Discipline, m.Parameters = time.Hour, "timeout", map[string]string{"max_queue_delay": delay.String()}
	}, p)))
	d.SetProfile(linear(time.Millisecond, time.Millisecond))

	// The first finds a free partition, and its batch is gathered for the delay.
	ended := make(chan error, 2)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	go func() { ended <- infer(ctx, t, d, 1, 1, nil) }()
	require.Equal(t, "id1", <-p.started)
	// The second finds it busy, until the first is answered, which is after its own delay.
	go func() { ended <- infer(t.Context(), t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { return len(d.Waiting()) == 1 }, 30*time.Second, time.Millisecond)
	queued := time.Now()
	waiting := d.Waiting()[0]
	require.Equal(t, "m", waiting.Model)
	require.Equal(t, 1, waiting.Requests)
	require.Equal(t, 1, waiting.Rows)
	require.Equal(t, 1, waiting.Candidate)
	require.True(t, waiting.Timed)
	require.InDelta(t, time.Hour.Seconds(), waiting.Slack.Seconds(), 60)
	time.Sleep(2 * delay)
	require.GreaterOrEqual(t, d.Waiting()[0].Oldest, 2*delay)
	held := time.Since(queued)
	close(p.hold)
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	require.Empty(t, d.Waiting())

	require.Eventually(t, func() bool { return seen.ended() == 2 }, 30*time.Second, time.Millisecond)
	first, second := seen.outcomes[0], seen.outcomes[1]
	if seen.ids[0] == "id2" { // the first came back later
		first, second = second, first
		slices.Reverse(seen.ids)
		slices.Reverse(seen.traces)
	}
	require.Equal(t, []string{"id1", "id2"}, seen.ids)
	require.Equal(t, []string{"0af7651916cd43dd8448eb211c80319c", ""}, seen.traces)
	for _, o := range seen.outcomes {
		require.Equal(t, dispatch.OK, o.Result)
		require.LessOrEqual(t, o.Wait+o.Gather+o.Execute, o.Latency)
		require.LessOrEqual(t, o.Wait+o.Gather, o.Queued)
		require.Equal(t, time.Hour, o.Deadline)
		require.NotEmpty(t, o.Partition)
	}
	require.Zero(t, first.Wait)
	require.GreaterOrEqual(t, first.Gather, delay)
	require.GreaterOrEqual(t, first.Execute, held)
	require.GreaterOrEqual(t, second.Wait, held)
	require.Less(t, second.Gather, second.Wait, "its delay was over when the partition became free")
	require.Positive(t, second.Execute)
	require.Equal(t, time.Hour-first.Latency, seen.executions[0].Deadline.Sub(first.Ended))
}
