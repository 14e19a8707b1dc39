// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// trials is a fixture whose scheduler tries what profiles condemn, every 100 at most.
func trials(t *testing.T) *fixture {
	f := &fixture{t: t}
	f.Scheduler = queue.New(f, queue.Options{RateWindow: 20, Trial: 100})
	return f
}

// A model whose l(1) is believed to be 40 while its SLO is 12 has no request that could be in
// time. It is executed nevertheless, whatever becomes of late requests.
func TestWhatBeliefCondemnsIsTried(t *testing.T) {
	for _, late := range []queue.Late{queue.LateDrop, queue.LateServe} {
		for _, drop := range []string{"reserve", "thrift", "window", "prefix"} {
			f := trials(t)
			m := f.model("adaptive", drop, late, queue.Linear(1, 39, 8))
			p := f.executor(0, 0, m)
			f.enqueue(0, m, 1)
			if late == queue.LateServe {
				f.Complete(6, p) // no other request waits
			} else {
				require.Empty(t, f.batches, "not at once")
			}
			before := len(f.batches)
			f.enqueue(100, m, 1)
			require.Len(t, f.batches, before+1, "%s %s", late, drop)
			require.True(t, f.last().Late)
			require.EqualValues(t, 1, f.Stats().Trials)
		}
	}
}

// The bound: trials that take the predicted time become rarer, down to one in 16 times the
// shortest pause. After a faster one the next comes after the shortest pause.
func TestTrialsAreBounded(t *testing.T) {
	f := trials(t)
	m := f.model("adaptive", "prefix", queue.LateDrop, queue.Linear(1, 39, 8))
	p := f.executor(0, 0, m)
	var started []queue.Time
	run := func(from, to, took queue.Time) {
		started = nil
		for now := from; now < to; now++ {
			if n := len(started); n > 0 && now == started[n-1]+took {
				f.Complete(now, p)
			}
			before := len(f.batches)
			f.enqueue(now, m, 1)
			if len(f.batches) > before {
				started = append(started, now)
			}
		}
	}
	run(0, 10_000, 40)
	require.Equal(t, []queue.Time{100, 340, 780, 1620, 3260, 4900, 6540, 8180, 9820}, started, "each pause is twice the one before, 1600 at most, from when the trial has ended")
	require.Len(t, f.dropped, 10_000-len(started))
	run(10_000, 20_000, 10)
	require.Greater(t, len(started), 80, "one that is faster than believed ends the pause")
	require.Less(t, len(started), 101)
}

// A request that was late only because the queue was long is no evidence against the profile: nothing is tried.
func TestOverloadIsNoReasonForTrials(t *testing.T) {
	f := trials(t)
	m := f.model("adaptive", "prefix", queue.LateDrop, linear)
	p := f.executor(0, 0, m)
	for now := queue.Time(0); now < 1000; now++ {
		f.enqueue(now, m, 5)
		if b := f.last(); now == b.Finish {
			f.Complete(now, p)
		}
	}
	require.NotEmpty(t, f.dropped)
	require.Zero(t, f.Stats().Trials)
}

// A short deadline of a request's own is no reason either while others are served.
func TestOthersThatAreServedAreEvidenceEnough(t *testing.T) {
	f := trials(t)
	m := f.model("adaptive", "prefix", queue.LateDrop, linear)
	p := f.executor(0, 0, m)
	for now := queue.Time(0); now < 1000; now += 20 {
		f.enqueue(now, m, 1)
		f.Enqueue(now, m, &queue.Request{Arrival: now, Deadline: now + 3})
		f.Complete(now+6, p)
	}
	require.Len(t, f.dropped, 50)
	require.Zero(t, f.Stats().Trials)
}

// Where another model always waits for the only executor, a trial takes its turn, and a
// thirty-second of the time at most.
func TestTrialsTakeASmallShareFromOthers(t *testing.T) {
	f := trials(t)
	condemned := f.model("adaptive", "prefix", queue.LateDrop, queue.Linear(1, 39, 8))
	busy := f.model("eager", "none", queue.LateServe)
	p := f.executor(0, 0, condemned, busy)
	ends, tried := queue.Time(10), queue.Time(0)
	f.enqueue(0, busy, 20)
	for now := queue.Time(0); now < 20_000; now++ {
		f.enqueue(now, condemned, 1)
		if now != ends {
			continue
		}
		f.enqueue(now, busy, 8)
		f.Complete(now, p)
		ends = now + 10
		if f.last().Model == condemned {
			ends = now + 40
			tried += 40
		}
	}
	require.Positive(t, tried)
	require.LessOrEqual(t, tried, queue.Time(20_000/32+40))
}

// A trial that waits for an executor survives a new profile, and one that is cancelled makes room for another.
func TestTrialsThatWait(t *testing.T) {
	f := trials(t)
	m := f.model("adaptive", "prefix", queue.LateDrop, queue.Linear(1, 39, 8))
	p := f.executor(0, 0, m)
	require.NoError(t, f.SetUp(0, p, false))
	f.enqueue(0, m, 1)
	first := f.enqueue(100, m, 2)
	require.Len(t, f.dropped, 2)
	drop, err := queue.NewDropPolicy("prefix")
	require.NoError(t, err)
	require.NoError(t, f.SetModel(101, m, queue.ModelSpec{Classes: []queue.Table{queue.Linear(1, 30, 8)}, MaxBatch: 8, SLO: 12, Drop: drop, Late: queue.LateDrop}))
	require.Len(t, f.dropped, 2)
	require.True(t, f.Cancel(102, first[0]))
	f.enqueue(200, m, 2)
	require.Len(t, f.dropped, 3)
	require.NoError(t, f.SetUp(201, p, true))
	require.Len(t, f.batches, 1)
}

// probing is a model whose batches of more than two rows are believed to miss the SLO of 12:
// l = 6, 7, 30, 31, ..., where l(b) = b+5 is credible.
func probing(f *fixture) queue.ModelID {
	drop, err := queue.NewDropPolicy("prefix")
	require.NoError(f.t, err)
	eager, err := queue.NewDiscipline("eager", nil)
	require.NoError(f.t, err)
	believed := queue.Table{0, 6, 7, 30, 31, 32, 33, 34, 35, 36}
	return f.AddModel(0, queue.ModelSpec{
		Classes: []queue.Table{believed}, Optimistic: []queue.Table{linear}, MaxBatch: 8, SLO: 12, Late: queue.LateDrop, Drop: drop, Discipline: eager,
	})
}

// TestSizesBelievedTooSlowAreProbed: one batch in 16 is as large as the optimistic table allows, and twice the rows of others at most.
func TestSizesBelievedTooSlowAreProbed(t *testing.T) {
	for _, test := range []struct {
		name         string
		took         queue.Time // by a probe
		least, most  int        // probes in 1600 batches
		fullestBatch int
	}{
		{"the belief is wrong", 9, 95, 100, 4},
		{"the belief is right", 31, 5, 7, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			m := probing(f)
			p := f.executor(0, 0, m)
			rows := 0
			var now queue.Time
			for f.enqueue(0, m, 1); len(f.batches) < 1600; f.Complete(now, p) {
				b := f.last()
				rows = max(rows, b.Rows)
				now = b.Start + 7
				if b.Rows > 2 {
					now = b.Start + test.took
				}
				f.enqueue(now, m, 6)
			}
			probes := int(f.Stats().Probes)
			require.GreaterOrEqual(t, probes, test.least)
			require.LessOrEqual(t, probes, test.most)
			require.Equal(t, test.fullestBatch, rows)
		})
	}
}

// A model without a profile that always has a backlog is executed with two batch sizes, so that it can be learnt.
func TestTwoSizesAreExecutedWithoutAProfile(t *testing.T) {
	f := trials(t)
	m := f.model("adaptive", "reserve", queue.LateServe)
	p := f.executor(0, 0, m)
	sizes := map[int]int{}
	f.enqueue(0, m, 17)
	for now := queue.Time(10); now < 10_000; now += 10 {
		f.enqueue(now, m, 8)
		f.Complete(now, p)
		sizes[f.last().Rows]++
	}
	require.Len(t, sizes, 2)
	require.InDelta(t, 999./16, sizes[4], 5)
}
