// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch"
)

func TestSchedulerFaultFallsBackToForwarding(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	results := make(chan error, 3)
	go func() { results <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	go func() { results <- infer(t.Context(), t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	dispatch.BreakScheduler(d)
	go func() { results <- infer(t.Context(), t, d, 3, 1, nil) }()
	<-p.started
	<-p.started
	close(p.hold)
	for range 3 {
		require.NoError(t, <-results)
	}
	require.NoError(t, infer(t.Context(), t, d, 4, 1, nil))
	require.Equal(t, 4, resultsInTime(seen.count(t))[dispatch.OK])
}
