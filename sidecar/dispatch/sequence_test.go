// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// inSequence makes requests steps of a sequence.
func inSequence(id string, start bool) func(*tritonpb.ModelInferRequest) {
	return func(m *tritonpb.ModelInferRequest) {
		m.Parameters = map[string]*tritonpb.InferParameter{
			"sequence_id":    {ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: id}},
			"sequence_start": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: start}},
		}
	}
}

// TestASequenceOnAPartitionThatIsReplaced: two steps of one sequence on a stream, their partition replaced while the first one runs, and the
// first one ends. The second reaches the new partition, and no other request waits for it.
func TestASequenceOnAPartitionThatIsReplaced(t *testing.T) {
	old, fresh := newTriton(t), newTriton(t)
	old.hold, old.started = make(chan struct{}), make(chan string, 10)
	d, _, client := streamed(t, dispatch.Options{}, table(1, nil, old))
	step := func(id string) *tritonpb.ModelInferRequest {
		m := message(id, 1, 1)
		inSequence("s", id == "first")(m)
		return m
	}
	s := openStream(t.Context(), t, client, step("first"), step("second"))
	require.Equal(t, "first", <-old.started)
	// The same partition, with another server.
	next := table(2, nil, fresh)
	next.Partitions[0].ID = "p" + old.address
	next.Models["m"].Places[0].Partition = "p" + old.address
	require.NoError(t, d.Swap(t.Context(), next))
	close(old.hold)
	within, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, infer(within, t, d, 3, 1, inSequence("other", true)))
	require.Equal(t, []string{"first|m|true|", "second|m|true|"}, lines(t, s))
	<-d.Drained("p"+old.address, "")
}

// TestASequenceIDUsedAgain after its idle time: it begins anew, and all its steps go where the first one went.
func TestASequenceIDUsedAgain(t *testing.T) {
	parts := []*triton{newTriton(t), newTriton(t), newTriton(t)}
	now := newMovableClock()
	d, _ := newDispatcher(t, dispatch.Options{Clock: now}, table(1, func(m *router.Model) {
		m.Config.SchedulingChoice = &tritonpb.ModelConfig_SequenceBatching{SequenceBatching: &tritonpb.ModelSequenceBatching{MaxSequenceIdleMicroseconds: 60_000_000}}
	}, parts...))
	for round := range 3 {
		before := counted(parts)
		require.NoError(t, infer(t.Context(), t, d, 1, 1, inSequence("again", true)))
		home := moved(before, counted(parts))
		// Another request keeps that partition busy: another partition would be chosen now.
		busy, ended := parts[home], make(chan error, 1)
		busy.set(func() { busy.hold, busy.passes, busy.started = make(chan struct{}), "id2", make(chan string, 10) })
		go func() { ended <- infer(t.Context(), t, d, 9, 1, inSequence("busy", true)) }()
		require.Equal(t, "id9", <-busy.started)
		for range 4 {
			before = counted(parts)
			require.NoError(t, infer(t.Context(), t, d, 2, 1, inSequence("again", false)))
			require.Equal(t, home, moved(before, counted(parts)), "round %d", round)
		}
		close(busy.hold)
		require.NoError(t, <-ended)
		busy.set(func() { busy.hold, busy.passes, busy.started = nil, "", nil })
		now.move(time.Hour)
	}
}

func counted(parts []*triton) (n []int) {
	for _, p := range parts {
		n = append(n, len(p.executions()))
	}
	return n
}

// moved returns the partition that has executed one more.
func moved(before, after []int) int {
	for i := range before {
		if after[i] > before[i] {
			return i
		}
	}
	return -1
}

// TestASequenceWhosePartitionIsOrderedDown: its step is not tried on another partition, which does not have its state. The caller's error is that
// the partition was lost, not that the caller cancelled.
func TestASequenceWhosePartitionIsOrderedDown(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 1)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 1, 1, inSequence("s", true)) }()
	require.Equal(t, "id1", <-p.started)
	d.SetPartitionState("p"+p.address, false, "stopped")
	err := <-result
	requireCode(t, codes.Unavailable, err)
	require.ErrorContains(t, err, "partition p"+p.address+" was lost")
	require.Equal(t, map[dispatch.Result]int{dispatch.Failed: 1}, seen.count(t))
}
