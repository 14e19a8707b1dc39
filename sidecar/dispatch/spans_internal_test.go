// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// The request path's calls for spans, where there are none, allocate nothing, for the request and for the execution.
func TestCallsWithoutSpansAllocateNothing(t *testing.T) {
	c := &call{ticket: ticket{rows: 1}, req: &batch.Request{Model: "m"}}
	b := &attempt{model: &model{name: "m"}, partition: &router.Partition{}, calls: []*call{c, c, c}}
	a, o, now := &answer{}, &Outcome{}, time.Now()
	var d Dispatcher
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		c.span = d.o.Spans.Request(t.Context(), "m", "", "", 1, now)
		b.newSpan().End(now, nil)
		c.endSpan(a, o, now)
	}))
}
