// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// These tests are about requests that wait beside idle executors: something has to end that, and if it is only the queue's own next event.

const ms = queue.Time(1_000_000)

// blocking has executors for two models under adaptive: tight, whose requests cannot wait as long as one of heavy takes, and which has asked for one executor until
// now, and heavy, which has asked for none.
func blocking(t *testing.T, executors int) (f *fixture, heavy queue.ModelID, now queue.Time) {
	f = &fixture{t: t}
	f.Scheduler = queue.New(f, queue.Options{})
	tight := f.AddModel(0, queue.ModelSpec{Name: "tight", Classes: []queue.Table{queue.Linear(1*ms, 9*ms, 8)}, MaxBatch: 8, SLO: 20 * ms})
	heavy = f.AddModel(0, queue.ModelSpec{Name: "heavy", Classes: []queue.Table{queue.Linear(20*ms, 80*ms, 8)}, MaxBatch: 8, SLO: 1000 * ms})
	for range executors {
		f.executor(0, 0, tight, heavy)
	}
	for ; now < 1000*ms; now += 10 * ms {
		f.enqueue(now, tight, 1)
		f.Complete(now+9*ms, f.last().Executor)
	}
	f.batches = nil
	return f, heavy, now
}

// follow makes the queue's own events happen, until a moment.
func (f *fixture) follow(until queue.Time) {
	for f.Next() <= until {
		f.Advance(f.Next())
	}
}

// TestWithoutADeadlineThereIsNoTimeToWaitFor: a batch that blocks others severely, and is smaller than it could be, does not start before its time. A request without a
// deadline has no such time. An ensemble without an SLO sends such requests to models that have one.
func TestWithoutADeadlineThereIsNoTimeToWaitFor(t *testing.T) {
	f, heavy, now := blocking(t, 3)
	f.Enqueue(now, heavy, &queue.Request{Arrival: now, Deadline: queue.Never})
	require.Equal(t, now, f.last().Start)
}

// TestLateRequestsStartWhenTheyBlockNobody: the running batch takes far longer than predicted, and nothing else happens.
func TestLateRequestsStartWhenTheyBlockNobody(t *testing.T) {
	f, heavy, now := blocking(t, 2)
	f.enqueue(now, heavy, 1)
	f.follow(now + 1000*ms)
	end := f.last().Finish
	now = end - 90*ms
	f.Enqueue(now, heavy, &queue.Request{Arrival: now, Deadline: now + 50*ms})
	require.Equal(t, 1, f.Late(heavy))
	require.Len(t, f.batches, 1, "two executors would be taken for longer than the other model can wait")
	f.follow(end)
	require.Len(t, f.batches, 2)
	require.Equal(t, end-10*ms, f.last().Start)
	require.True(t, f.last().Late)
}

// TestLateRequestsTakeWhatOthersCannotUse: what waits for an executor that is down takes none of the others from requests that were given up.
func TestLateRequestsTakeWhatOthersCannotUse(t *testing.T) {
	f := newFixture(t)
	elsewhere := f.AddModel(0, queue.ModelSpec{Name: "elsewhere", MaxBatch: 8})
	m := f.model("adaptive", "reserve", queue.LateServe, linear)
	down := f.executor(0, 0, elsewhere, m)
	idle := f.executor(1, 0, m)
	require.NoError(t, f.SetUp(0, down, false))
	f.enqueue(1, elsewhere, 1)
	f.Enqueue(1, m, &queue.Request{Arrival: 1, Deadline: 3})
	require.True(t, f.last().Late)
	require.Equal(t, idle, f.last().Executor)
}

// TestLateRequestsThatFitAreServed: the first of those that were given up has too many rows for the executor that is idle, and those behind it have not.
func TestLateRequestsThatFitAreServed(t *testing.T) {
	f := newFixture(t)
	m := f.model("adaptive", "reserve", queue.LateServe, linear)
	large := f.executor(0, 0, m)
	small := f.AddExecutor(0, queue.ExecutorSpec{Rank: 1, Serves: []queue.Service{{Model: m, MaxBatch: 4}}})
	require.NoError(t, f.SetUp(0, large, false))
	for _, rows := range []int32{8, 6, 2, 1, 5, 1} {
		f.Enqueue(1, m, &queue.Request{Arrival: 1, Deadline: 3, Rows: rows})
	}
	require.Equal(t, small, f.last().Executor)
	require.Equal(t, 2, f.last().Rows, "what was there first")
	f.Complete(10, small)
	require.Equal(t, 1, f.last().Rows, "one of five rows comes between")
	f.Complete(20, small)
	require.Equal(t, 1, f.last().Rows)
	f.Complete(30, small)
	require.Len(t, f.batches, 3)
	require.NoError(t, f.SetUp(40, large, true))
	for i := range 3 { // one for each that is left: eight, six and five rows
		require.Equal(t, large, f.last().Executor)
		f.Complete(queue.Time(50+20*i), large)
	}
	require.Zero(t, f.Late(m))
	require.Len(t, f.batches, 6)
}

// TestALaneWithoutRequestsHasNothingDue: a late request is served that would have been dropped at its expiry later. Its lane is idle then, and is removed as others are. If its timer
// went off nevertheless, it would be used again without being one of its model's lanes, and what waits there would be forgotten in each change.
func TestALaneWithoutRequestsHasNothingDue(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateServe, linear)
	p := f.executor(0, 0, m)
	key := uint64(0)
	others := func(now queue.Time, n int) {
		for range n {
			key++
			f.Enqueue(now, m, &queue.Request{Arrival: now, Key: key, Deadline: queue.Never})
		}
	}
	f.enqueue(0, m, 1)
	f.Enqueue(0, m, &queue.Request{Deadline: 3, Key: 1 << 32, Expiry: 1000, Expired: queue.LateDrop})
	f.Complete(6, p)
	require.True(t, f.last().Late)
	due := f.Next()
	others(12, 81)
	for range 82 { // they leave an idle lane each
		f.Complete(12, p)
	}
	for range 10 { // the oldest of which are removed
		others(13, 1)
		f.Complete(13, p)
	}
	f.Advance(1001)
	for range 60 {
		others(1002, 1)
		f.Complete(1002, p)
	}
	others(1003, 101)
	require.NoError(t, f.Empty(1003, m, queue.DropOutage))
	n, _ := f.Queued(m)
	require.Zero(t, n)
	require.Equal(t, queue.Never, due, "nothing was queued")
}

// TestALateAlarmServesNothingLateThatHasExpired: where an event is handled later than it was due, requests that were given up do not start after their expiry, either. Here one could
// start when another one expires that waits for more.
func TestALateAlarmServesNothingLateThatHasExpired(t *testing.T) {
	f := newFixture(t)
	waits, late := f.model("deferred", "none", queue.LateServe, linear), f.model("eager", "prefix", queue.LateServe, linear)
	f.executor(0, 0, waits, late)
	f.Enqueue(0, waits, &queue.Request{Deadline: 100, Expiry: 5, Expired: queue.LateDrop})
	f.Enqueue(0, late, &queue.Request{Deadline: 3, Expiry: 8, Expired: queue.LateDrop})
	require.Equal(t, 1, f.Late(late))
	f.Advance(20)
	require.Empty(t, f.batches)
	require.Equal(t, []queue.DropReason{queue.DropExpired, queue.DropExpired}, f.dropped)
}
