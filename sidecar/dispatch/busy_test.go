// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// A request that is passed through is judged by the SLO and keeps its partition
// busy, as a queued one does: an operator who only watches sees the whole load.
func TestWhatIsPassedThroughCountsAsWhatIsQueued(t *testing.T) {
	const takes = 30 * time.Millisecond
	for name, batchable := range map[string]bool{"queued": true, "passed through": false} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			p.takes = takes
			d, seen := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) {
				m.Batchable, m.SLO = batchable, takes/2
			}, p))
			for _, err := range atOnce(4, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1, nil) }) {
				require.NoError(t, err)
			}
			require.Equal(t, map[dispatch.Result]int{dispatch.Late: 4}, seen.count(t))

			require.NoError(t, d.Close()) // an execution is over a little after its answer
			var busy time.Duration
			var last time.Time
			slices.SortFunc(seen.busy, func(a, b [2]time.Time) int { return a[0].Compare(b[0]) })
			for _, span := range seen.busy {
				require.False(t, span[0].Before(last), "what is reported overlaps: %v", seen.busy)
				last = span[1]
				busy += span[1].Sub(span[0])
			}
			require.GreaterOrEqual(t, busy, takes)
		})
	}
}

// A request that is passed through on a stream is judged too. A request of a
// decoupled model, whose answers may go on for any time, is never late.
func TestStreamedRequestsAreJudged(t *testing.T) {
	for want, decoupled := range map[dispatch.Result]bool{dispatch.Late: false, dispatch.OK: true} {
		p := newTriton(t)
		p.takes = 30 * time.Millisecond
		_, seen, client := streamed(t, dispatch.Options{}, table(1, func(m *router.Model) {
			m.Batchable, m.SLO = false, time.Millisecond
			m.Config.ModelTransactionPolicy = &tritonpb.ModelTransactionPolicy{Decoupled: decoupled}
		}, p))
		require.Equal(t, []string{"a|m|true|"}, lines(t, openStream(t.Context(), t, client, message("a", 1, 1))))
		require.Equal(t, map[dispatch.Result]int{want: 1}, seen.count(t))
	}
}
