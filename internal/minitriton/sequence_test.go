// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// quietAlarm notes when it would ring.
type quietAlarm struct{ set []time.Time }

func (a *quietAlarm) Set(at time.Time) { a.set = append(a.set, at) }
func (a *quietAlarm) Stop()            {}

// slotted is a sequence batcher with slots and an idle time of 100 ms.
func slotted(slots int) (*sequences, *quietAlarm) {
	s := newSequences(&pb.ModelConfig{MaxBatchSize: int32(slots), SchedulingChoice: &pb.ModelConfig_SequenceBatching{
		SequenceBatching: &pb.ModelSequenceBatching{MaxSequenceIdleMicroseconds: 100_000}}}, 1)
	alarm := &quietAlarm{}
	s.alarm = alarm
	return s, alarm
}

// step is a request of a sequence at a time in milliseconds.
func step(ms int, id string, flags string) *request {
	return &request{id: id, rows: 1, enqueued: at(ms), sequence: sequence{id: id, start: flags == "start" || flags == "only", end: flags == "end" || flags == "only"}}
}

func idsOf(requests []*request) []string {
	var ids []string
	for _, r := range requests {
		ids = append(ids, r.id)
	}
	return ids
}

func TestSequencesWaitForSlots(t *testing.T) {
	s, alarm := slotted(2)
	admit := func(r *request, want ...string) {
		t.Helper()
		ready, err := s.admit("m", r)
		require.Nil(t, err)
		require.Equal(t, want, idsOf(ready))
	}
	admit(step(0, "a", "start"), "a")
	admit(step(1, "b", "only"), "b")
	admit(step(2, "c", "start"))
	require.NotEmpty(t, alarm.set, "a may fall idle")
	admit(step(3, "c", ""))
	admit(step(4, "d", "start"))
	admit(step(5, "a", ""), "a")
	require.Equal(t, []string{"c", "c"}, idsOf(s.ended(at(6))), "the slot of b goes to c, whole")
	admit(step(7, "a", "end"), "a")
	require.Equal(t, []string{"d"}, idsOf(s.ended(at(8))))
	_, err := s.admit("m", step(9, "a", ""))
	require.Equal(t, "inference request for sequence a to model 'm' must specify the START flag on the first request of the sequence", err.Message)
}

func TestAnIdleSequenceLosesItsSlot(t *testing.T) {
	s, _ := slotted(1)
	_, err := s.admit("m", step(0, "a", "start"))
	require.Nil(t, err)
	ready, err := s.admit("m", step(10, "b", "start"))
	require.Nil(t, err)
	require.Empty(t, ready)
	require.Empty(t, s.reap(at(90)), "a is not idle yet")
	require.Equal(t, []string{"b"}, idsOf(s.reap(at(101))))
	_, err = s.admit("m", step(102, "a", ""))
	require.NotNil(t, err)
}
