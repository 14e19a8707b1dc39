// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

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

// TestWithoutASchedulerTheRestGoesOn: after its fault tables are swapped, partitions go down and up, callers may leave, and it is said.
func TestWithoutASchedulerTheRestGoesOn(t *testing.T) {
	p, other := newTriton(t), newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	require.NoError(t, d.Fault())
	ctx, cancel := context.WithCancel(t.Context())
	runs, waits := make(chan error, 1), make(chan error, 1)
	go func() { runs <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	go func() { waits <- infer(ctx, t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	dispatch.BreakScheduler(d)
	d.SetProfile(linear(time.Millisecond, time.Millisecond)) // and it is noticed
	require.ErrorContains(t, d.Fault(), "the scheduler failed")
	require.Equal(t, "id2", <-p.started, "what waited is forwarded")
	cancel()
	requireCode(t, codes.Canceled, <-waits)

	require.NoError(t, d.Swap(t.Context(), table(2, nil, other)))
	require.EqualValues(t, 2, d.Routes().Revision)
	require.NoError(t, infer(t.Context(), t, d, 3, 1, nil))
	require.Equal(t, []string{"id3"}, other.seen)
	drained := d.Drained("p"+p.address, "")
	close(p.hold)
	require.NoError(t, <-runs)
	<-drained

	d.SetPartitionState("p"+other.address, false, "restarting")
	require.False(t, d.Partitions()[0].Up)
	d.SetPartitionState("p"+other.address, true, "")
	require.NoError(t, infer(t.Context(), t, d, 4, 1, nil))
	require.Equal(t, 3, resultsInTime(seen.count(t))[dispatch.OK])
	require.NoError(t, d.Drain(t.Context()))
}

// TestAPanicAnswersItsRequest, and ends nothing else.
func TestAPanicAnswersItsRequest(t *testing.T) {
	p := newTriton(t)
	d, _, client := streamed(t, dispatch.Options{Recorder: faulty{}}, table(1, nil, p))
	_, err := client.ModelInfer(t.Context(), message("a", 1, 1))
	requireCode(t, codes.Internal, err)
	s, err := client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(message("b", 1, 1)))
	_, err = s.Recv()
	requireCode(t, codes.Internal, err)
	n, bytes := d.UnderWay()
	require.Zero(t, n)
	require.Zero(t, bytes)
}

// faulty panics where it is told of a request.
type faulty struct{}

func (faulty) Recording() bool         { return true }
func (faulty) Record(dispatch.Arrival) { panic("a fault") }
