// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/observe"
)

func TestWalksAreSummedUpOverTheWindow(t *testing.T) {
	r := recorder(t)
	ms := time.Millisecond
	walk := func(at time.Duration, second bool) observe.Walk {
		return observe.Walk{Ensemble: "e", Rows: 2, Ended: start.Add(at), Took: 10 * ms, Steps: []observe.WalkStep{
			{Ran: true, Rows: 2, Queue: ms, Execution: 2 * ms, HandOver: ms, Critical: true},
			{Ran: second, Rows: 6, Queue: 3 * ms, Execution: 2 * ms, HandOver: ms, Critical: second, Taken: []int64{48}},
		}}
	}
	r.Walked(walk(0, true)) // too old, at the end
	r.Walked(walk(4*time.Second, true))
	r.Walked(walk(6*time.Second, false))
	require.Equal(t, observe.Walks{Requests: 2, Rows: 4, Took: 20 * ms, Steps: []observe.StepWalks{
		{Ran: 2, Rows: 4, Whole: 4, Critical: 2, Queue: 2 * ms, Execution: 4 * ms, HandOver: 2 * ms, Taken: []int64{}},
		{Ran: 1, Rows: 6, Whole: 2, Critical: 1, Queue: 3 * ms, Execution: 2 * ms, HandOver: ms, Taken: []int64{48}},
	}}, r.Walks("e", start.Add(7*time.Second)))

	// An ensemble with other steps is another one.
	other := walk(7*time.Second, true)
	other.Steps = other.Steps[:1]
	r.Walked(other)
	require.Equal(t, uint64(1), r.Walks("e", start.Add(7*time.Second)).Requests)

	r.Forget([]string{"m"}, nil)
	require.Zero(t, r.Walks("e", start.Add(7*time.Second)).Requests)
	require.Zero(t, r.Walks("never heard of", start).Requests)
}

// A step that a request did not need has taken nothing, whichever half of the window it was in.
func TestAStepThatSomeRequestsDoNotNeed(t *testing.T) {
	r := recorder(t)
	walk := func(at time.Duration, second bool) observe.Walk {
		return observe.Walk{Ensemble: "e", Rows: 1, Ended: start.Add(at), Steps: []observe.WalkStep{
			{Ran: true, Rows: 1}, {Ran: second, Rows: 1, Taken: []int64{48}},
		}}
	}
	r.Walked(walk(time.Second, false))
	r.Walked(walk(3*time.Second, true))
	second := r.Walks("e", start.Add(4*time.Second)).Steps[1]
	require.Equal(t, observe.StepWalks{Ran: 1, Rows: 1, Whole: 1, Taken: []int64{48}}, second)
}
