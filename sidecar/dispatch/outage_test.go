// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// outageClock lets the test declare outages, and only those.
type outageClock struct{ *handClock }

func (c outageClock) After(wait time.Duration, ring func()) clock.Timer {
	if wait == time.Minute {
		return c.handClock.After(wait, ring)
	}
	return c.Clock.After(wait, ring)
}

// declare ends the wait of the outage that there is.
func (c outageClock) declare() {
	for {
		timer := <-c.asked
		select {
		case <-timer.stopped: // of an outage that is over
		default:
			timer.ring()
			return
		}
	}
}

// TestACallGivenBackMeetsTheNextOutage: a call runs while an outage is declared and ends. The loss of its partition puts it back into the queue,
// and the next outage answers it.
func TestACallGivenBackMeetsTheNextOutage(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	clock := outageClock{newHandClock()}
	d, _ := newDispatcher(t, dispatch.Options{Clock: clock, OutageWait: time.Minute}, table(1, nil, p))
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 1, 1, nil) }()
	require.Equal(t, "id1", <-p.started)
	id := "p" + p.address
	p.kill() // the call that runs is lost, and queued again
	d.SetPartitionState(id, false, "restarting")
	clock.declare()
	requireCode(t, codes.Unavailable, <-result)
	requireCode(t, codes.Unavailable, infer(t.Context(), t, d, 2, 1, nil))

	p.restart()
	p.set(func() { p.hold = nil })
	d.SetPartitionState(id, true, "")
	require.NoError(t, infer(t.Context(), t, d, 3, 1, nil))
	require.Equal(t, "id3", <-p.started)

	p.set(func() { p.hold = make(chan struct{}) })
	go func() { result <- infer(t.Context(), t, d, 4, 1, nil) }()
	require.Equal(t, "id4", <-p.started)
	d.SetPartitionState(id, false, "restarting")
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	clock.declare()
	requireCode(t, codes.Unavailable, <-result)
}

// TestAnOutageThatIsOverRefusesNothing: a partition comes up after the queue has marked a model as out, and before a request for it is answered.
// Requests that waited in the queue are served, and so are new ones.
func TestAnOutageThatIsOverRefusesNothing(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	result := make(chan error, 2)
	go func() { result <- infer(t.Context(), t, d, 1, 1, nil) }()
	require.Equal(t, "id1", <-p.started)
	go func() { result <- infer(t.Context(), t, d, 2, 1, nil) }()
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)

	dispatch.GiveUp(d, "m")
	require.Equal(t, "id2", <-p.started, "it waited in the queue")
	go func() { result <- infer(t.Context(), t, d, 3, 1, nil) }()
	require.Equal(t, "id3", <-p.started, "it came when the queue took no more")
	close(p.hold)
	for range 3 {
		require.NoError(t, <-result)
	}
}

// TestAProxiedRequestWaitsForItsPartition: a proxied request waits while its model's only partition is down, as a request in the queue does. It
// fails when its caller's context ends, or when the outage is declared, with the outage's error.
func TestAProxiedRequestWaitsForItsPartition(t *testing.T) {
	p := newTriton(t)
	clock := outageClock{newHandClock()}
	d, _ := newDispatcher(t, dispatch.Options{Clock: clock, OutageWait: time.Minute}, table(1, nil, p))
	id := "p" + p.address
	d.SetPartitionState(id, false, "its server is to come")

	gone, leave := context.WithCancel(t.Context())
	leave()
	_, _, err := d.Pick(gone, "m")
	requireCode(t, codes.Canceled, err)

	picked := make(chan error, 1)
	pick := func() {
		_, done, err := d.Pick(t.Context(), "m")
		if err == nil {
			done(nil)
		}
		picked <- err
	}
	go pick()
	d.SetPartitionState(id, true, "")
	require.NoError(t, <-picked)

	d.SetPartitionState(id, false, "its server ended")
	go pick()
	clock.declare()
	err = <-picked
	requireCode(t, codes.Unavailable, err)
	require.ErrorContains(t, err, "its server ended")
}

// TestAModelThatThePlanPlacesNoLongerIsRefusedAtOnce: nothing is to come for it, so its requests wait for nothing, and the error says why.
func TestAModelThatThePlanPlacesNoLongerIsRefusedAtOnce(t *testing.T) {
	p := newTriton(t)
	with := table(1, nil, p)
	d, _ := newDispatcher(t, dispatch.Options{OutageWait: time.Hour}, with)
	require.NoError(t, infer(t.Context(), t, d, 1, 1, nil))

	without := table(2, nil, p)
	without.Models["m"].Places = nil
	require.NoError(t, d.Swap(t.Context(), without))
	err := infer(t.Context(), t, d, 2, 1, nil)
	requireCode(t, codes.Unavailable, err)
	require.ErrorContains(t, err, "the plan in force gives it none")

	require.NoError(t, d.Swap(t.Context(), table(3, nil, p)))
	require.NoError(t, infer(t.Context(), t, d, 3, 1, nil))
}

// TestQueuedRequestsOfAModelThatThePlanPlacesNoLongerAreServed: they were admitted, and the place that they waited for ends only once they are answered.
func TestQueuedRequestsOfAModelThatThePlanPlacesNoLongerAreServed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, o := inBubble(t, 1)
		parts[0].asked = func(context.Context, *tritonpb.ModelInferRequest) { time.Sleep(10 * time.Millisecond) }
		d, _ := newDispatcher(t, o, table(1, func(m *router.Model) { m.SLO = time.Second }, parts...))
		d.SetProfile(linear(0, 10*time.Millisecond))
		errs := make(chan error, 9)
		for i := range 9 { // some are executed, and the others wait
			go func() { errs <- infer(t.Context(), t, d, uint32(i+1)<<8, 8, nil) }()
		}
		time.Sleep(5 * time.Millisecond)
		without := table(2, nil, parts...)
		without.Models["m"].Places = nil
		require.NoError(t, d.Swap(t.Context(), without))
		for range 9 {
			require.NoError(t, <-errs)
		}
	})
}
