// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	simulated "github.com/conch-serving/conch/sidecar/sim/discipline"
)

// fixture is a Scheduler with a sink that keeps what it is given.
type fixture struct {
	*queue.Scheduler
	t       *testing.T
	batches []queue.Batch // Requests copied
	dropped []queue.DropReason
}

func (f *fixture) Dispatch(b *queue.Batch) {
	c := *b
	c.Requests = append([]*queue.Request(nil), b.Requests...)
	f.batches = append(f.batches, c)
}

func (f *fixture) Drop(_ *queue.Request, why queue.DropReason) { f.dropped = append(f.dropped, why) }

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t}
	f.Scheduler = queue.New(f, queue.Options{RateWindow: 20})
	return f
}

// model adds one with l(b) = b+5 per class, SLO 12 and batches of up to 8.
func (f *fixture) model(discipline, drop string, late queue.Late, classes ...queue.Table) queue.ModelID {
	return f.modelWith(discipline, nil, drop, late, classes...)
}

func (f *fixture) modelWith(discipline string, params map[string]string, drop string, late queue.Late, classes ...queue.Table) queue.ModelID {
	d, err := simulated.New(discipline, params)
	require.NoError(f.t, err)
	p, err := queue.NewDropPolicy(drop)
	require.NoError(f.t, err)
	return f.AddModel(0, queue.ModelSpec{
		Name: "m", Classes: classes, MaxBatch: 8, SLO: 12, Discipline: d, Drop: p, Late: late,
	})
}

func (f *fixture) executor(rank, class int32, models ...queue.ModelID) queue.ExecutorID {
	spec := queue.ExecutorSpec{Rank: rank}
	for _, m := range models {
		spec.Serves = append(spec.Serves, queue.Service{Model: m, Class: class})
	}
	return f.AddExecutor(0, spec)
}

func (f *fixture) enqueue(now queue.Time, m queue.ModelID, n int) (all []*queue.Request) {
	for range n {
		r := &queue.Request{Arrival: now}
		f.Enqueue(now, m, r)
		all = append(all, r)
	}
	return all
}

func (f *fixture) last() queue.Batch {
	require.NotEmpty(f.t, f.batches)
	return f.batches[len(f.batches)-1]
}

var linear = queue.Linear(1, 5, 8)

func TestSmallestRankFirst(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateDrop, linear)
	f.executor(2, 0, m)
	low := f.executor(1, 0, m)
	same := f.executor(1, 0, m)
	f.enqueue(0, m, 1)
	require.Equal(t, low, f.last().Executor)
	f.enqueue(0, m, 1)
	require.Equal(t, same, f.last().Executor, "equal ranks by identifier")
	f.Complete(1, low)
	f.enqueue(1, m, 1)
	require.Equal(t, low, f.last().Executor, "high ranks stay idle")
}

func TestWithoutProfileForwardsAtOnce(t *testing.T) {
	f := newFixture(t)
	m := f.model("deferred", "window", queue.LateDrop)
	p := f.executor(0, 0, m)
	f.enqueue(0, m, 1)
	require.Equal(t, 1, f.last().Rows)
	f.enqueue(1, m, 10)
	f.Complete(100, p) // long past the SLO
	require.Equal(t, 8, f.last().Rows)
	f.Complete(200, p)
	require.Equal(t, 2, f.last().Rows)
	require.Empty(t, f.dropped)
}

func TestClassesDecideBatchAndMoment(t *testing.T) {
	slow, fast := queue.Linear(2, 5, 8), queue.Linear(1, 2, 8)
	f := newFixture(t)
	m := f.model("deferred", "prefix", queue.LateDrop, slow, fast)
	onSlow := f.executor(0, 0, m)
	f.enqueue(0, m, 1)
	require.Equal(t, queue.Time(3), f.Next(), "d - l(2) on the slow class is 12 - 9")
	f.enqueue(1, m, 1)
	require.Equal(t, queue.Time(1), f.last().Start, "d - l(3) on the slow class is 12 - 11")
	require.Equal(t, queue.Time(1+9), f.last().Finish)

	onFast := f.executor(1, 1, m)
	f.enqueue(2, m, 2)
	f.Advance(3)          // d - l(3) on the slow class, which is busy
	f.Complete(8, onSlow) // l(1) is 7: too late for the slow class
	require.Len(t, f.batches, 1)
	require.Equal(t, queue.Time(14-5), f.Next(), "d - l(3) on the fast class")
	f.Advance(9)
	require.Equal(t, onFast, f.last().Executor)
	require.Equal(t, queue.Time(9+4), f.last().Finish)
	require.Empty(t, f.dropped)
}

func TestAvoid(t *testing.T) {
	f := newFixture(t)
	m := f.model("deferred", "thrift", queue.LateDrop, linear)
	a, b := f.executor(0, 0, m), f.executor(1, 0, m)
	requests := f.enqueue(0, m, 2)
	f.Advance(f.Next())
	require.Equal(t, a, f.last().Executor)

	f.Reconfigure(5, func() { // the batch failed: once more, together, elsewhere
		for _, r := range requests {
			r.Avoid = a
			f.Requeue(5, m, r)
		}
		f.Complete(5, a)
	})
	require.Len(t, f.batches, 2)
	require.Equal(t, b, f.last().Executor, "at once, where it did not fail")
	require.True(t, slices.Equal(requests, f.last().Requests))

	f = newFixture(t)
	m = f.model("eager", "prefix", queue.LateDrop, linear)
	a, b = f.executor(0, 0, m), f.executor(1, 0, m)
	r := &queue.Request{Avoid: a}
	require.NoError(t, f.SetUp(0, b, false))
	f.Enqueue(0, m, r)
	require.Equal(t, a, f.last().Executor, "the only one that is up")
}

// Executions at once of one server are avoided together.
func TestAvoidAServer(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateDrop, linear)
	a := f.executor(0, 0, m)
	also := f.AddExecutor(0, queue.ExecutorSpec{Rank: 1, Server: a, Serves: []queue.Service{{Model: m}}})
	b := f.executor(2, 0, m)
	f.Enqueue(0, m, &queue.Request{Avoid: a})
	require.Equal(t, b, f.last().Executor, "not another execution of the same server")
	f.Enqueue(1, m, &queue.Request{Arrival: 1, Avoid: a})
	require.Len(t, f.batches, 1, "it waits for b")
	f.Enqueue(2, m, &queue.Request{Arrival: 2})
	require.Equal(t, a, f.last().Executor)
	require.NoError(t, f.SetUp(3, b, false))
	require.Equal(t, also, f.last().Executor, "the server is the only one that is up")
	f.Enqueue(4, m, &queue.Request{Arrival: 4, Avoid: a})
	f.Complete(5, a)
	require.Len(t, f.batches, 4)
}

func TestAvoidedBecomesTheOnlyOne(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateDrop, linear)
	a, b := f.executor(0, 0, m), f.executor(1, 0, m)
	f.enqueue(0, m, 2)
	f.Complete(1, a)
	f.Enqueue(1, m, &queue.Request{Arrival: 1, Avoid: a})
	require.Len(t, f.batches, 2, "it waits for b")
	require.NoError(t, f.SetUp(2, b, false))
	require.Len(t, f.batches, 3)
	require.Equal(t, a, f.last().Executor)
}

func TestDownAndUpWithABatchInFlight(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "none", queue.LateServe, linear)
	p := f.executor(0, 0, m)
	f.enqueue(0, m, 2)
	require.ErrorIs(t, f.RemoveExecutor(1, p), queue.ErrBusy)
	require.NoError(t, f.SetUp(1, p, false))
	require.NoError(t, f.SetUp(2, p, true))
	require.Len(t, f.batches, 1, "not before its batch is completed")
	f.Complete(3, p)
	require.Len(t, f.batches, 2)
	require.NoError(t, f.DrainExecutor(3, p))
	f.enqueue(4, m, 1)
	f.Complete(5, p)
	require.Len(t, f.batches, 2, "draining")
	require.NoError(t, f.RemoveExecutor(6, p))
	require.ErrorIs(t, f.SetUp(7, p, true), queue.ErrUnknownExecutor)
}

func TestLateAreServedWhereNobodyWaits(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateServe, queue.Linear(0, 6, 8))
	p := f.executor(0, 0, m)
	f.enqueue(0, m, 1)
	late := f.enqueue(0, m, 3)
	f.Advance(7) // 7 + l(1) > 12
	require.Equal(t, 3, f.Stats().LateRequests)
	onTime := f.enqueue(8, m, 2)
	f.Complete(9, p)
	require.True(t, slices.Equal(onTime, f.last().Requests), "who can make it goes first")
	require.False(t, f.last().Late)
	f.Complete(16, p)
	require.True(t, slices.Equal(late, f.last().Requests), "in one batch, in order")
	require.True(t, f.last().Late)
	require.Empty(t, f.dropped)
}

func TestDropReasons(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "window", queue.LateDrop, linear)
	p := f.executor(0, 0, m)
	f.Enqueue(0, m, &queue.Request{Rows: 9})
	f.enqueue(0, m, 1)
	f.enqueue(0, m, 1)
	f.Advance(f.Next())
	f.Enqueue(8, m, &queue.Request{Arrival: 8})
	f.enqueue(9, m, 7)
	f.Complete(14, p) // the first has 6 left: alone it would make it
	require.Equal(t, 2, f.last().Rows)
	require.NoError(t, f.SetModel(14, m, queue.ModelSpec{Closed: true}))
	f.Enqueue(14, m, &queue.Request{})
	require.NoError(t, f.RemoveModel(14, m))
	f.Enqueue(15, m, &queue.Request{})
	require.Equal(t, []queue.DropReason{
		queue.DropTooLarge, queue.DropLate, queue.DropWindow, queue.DropClosed, queue.DropModelRemoved,
	}, uniq(f.dropped))
	for _, why := range queue.DropReasons() {
		require.NotContains(t, why.String(), "reason_")
	}
}

func uniq(all []queue.DropReason) (once []queue.DropReason) {
	for i, r := range all {
		if i == 0 || r != all[i-1] {
			once = append(once, r)
		}
	}
	return once
}

// TestHopelessModelStillBatches: where no request can meet the SLO, rows still
// share executions.
func TestHopelessModelStillBatches(t *testing.T) {
	for _, c := range []struct {
		name  string
		table queue.Table
		rows  int
	}{
		{"one row takes longer than the SLO", queue.Linear(1, 20, 8), 8},
		{"one row takes more than half of it", queue.Linear(2, 8, 8), 6}, // 2 l(1) = 20
		{"one row takes less", queue.Linear(1, 3, 8), 5},                 // 2 l(1) = 8
	} {
		f := newFixture(t)
		m := f.model("adaptive", "reserve", queue.LateServe, c.table)
		p := f.executor(0, 0, m)
		f.enqueue(0, m, 9)
		f.Complete(100, p) // by now all that waited is late
		require.Equal(t, c.rows, f.last().Rows, c.name)
		require.True(t, f.last().Late)
	}
}

func TestCancel(t *testing.T) {
	f := newFixture(t)
	m := f.model("deferred", "prefix", queue.LateDrop, linear)
	f.executor(0, 0, m)
	r := f.enqueue(0, m, 2)
	require.True(t, f.Cancel(1, r[0]))
	require.False(t, f.Cancel(1, r[0]))
	n, rows := f.Queued(m)
	require.Equal(t, []int{1, 1}, []int{n, rows})
	f.Advance(f.Next())
	require.True(t, slices.Equal(r[1:], f.last().Requests))
	require.False(t, f.Cancel(6, r[1]), "it runs")
	require.Equal(t, uint64(1), f.Stats().Cancelled)
}

func TestReconfigureIsOneChange(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateDrop, linear)
	f.enqueue(0, m, 3)
	f.Reconfigure(1, func() {
		f.executor(5, 0, m)
		require.Empty(t, f.batches)
		best := f.executor(1, 0, m)
		require.Empty(t, f.batches)
		require.NoError(t, f.SetExecutor(1, best, queue.ExecutorSpec{Rank: 0, Serves: []queue.Service{{Model: m, MaxBatch: 2}}}))
	})
	require.Len(t, f.batches, 2)
	require.Equal(t, queue.ExecutorID(2), f.batches[0].Executor)
	require.Equal(t, 2, f.batches[0].Rows, "the executor's own limit")
	require.Equal(t, 1, f.batches[1].Rows)
}

func TestManyKeysRecycleLanes(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateDrop, linear)
	p := f.executor(0, 0, m)
	now := queue.Time(0)
	for key := range uint64(1000) {
		f.Enqueue(now, m, &queue.Request{Arrival: now, Key: key})
		require.Equal(t, key, f.last().Requests[0].Key)
		now += 6
		f.Complete(now, p)
	}
	require.Len(t, f.batches, 1000)
}

func TestNames(t *testing.T) {
	require.Equal(t, "adaptive", simulated.Names()[0])
	d, err := simulated.New("", nil)
	require.NoError(t, err)
	require.Equal(t, "reserve", d.DefaultDrop(), "of adaptive alone")
	for _, x := range simulated.Kinds() {
		require.NotEmpty(t, x.Help, x.Name)
		_, err := queue.NewDropPolicy(x.DefaultDrop)
		require.NoError(t, err, x.Name)
		d, err := simulated.New(x.Name, nil)
		require.NoError(t, err)
		require.Equal(t, x.DefaultDrop, d.DefaultDrop())
	}
	_, err = simulated.New("lifo", nil)
	require.ErrorIs(t, err, queue.ErrUnknown)
	require.ErrorContains(t, err, "adaptive")
	_, err = simulated.New("timeout", map[string]string{"delay": "2ms"})
	require.ErrorIs(t, err, queue.ErrUnknown)
	require.ErrorContains(t, err, "max_queue_delay")
	_, err = simulated.New("timeout", map[string]string{"max_queue_delay": "-2ms"})
	require.ErrorContains(t, err, `"-2ms"`)
	for _, idle := range []string{"", "half", "-0.1", "1.1", "NaN"} {
		_, err = simulated.New("adaptive", map[string]string{"idle": idle})
		require.ErrorContains(t, err, "is not a number from 0 to 1")
	}
	_, err = queue.NewDropPolicy("tail")
	require.ErrorIs(t, err, queue.ErrUnknown)
}

// TestLoneRequestTakesTheSmallestRank: whichever class it is of, if it is in time there. A slower executor is not preferred because its candidate
// would have to start sooner.
func TestLoneRequestTakesTheSmallestRank(t *testing.T) {
	slow, fast := queue.Linear(1, 6, 8), queue.Linear(1, 2, 8)
	for _, c := range []struct {
		name       string
		slow, fast int32 // ranks
		at         queue.Time
		want       int32 // rank
	}{
		{"the fast one comes first", 1, 0, 0, 0},
		{"the slow one comes first", 0, 1, 0, 0},
		{"the slow one comes first, and is too slow", 0, 1, 6, 1},
	} {
		for _, rule := range []struct{ discipline, drop string }{{"adaptive", "reserve"}, {"eager", "prefix"}} {
			t.Run(c.name+"/"+rule.discipline, func(t *testing.T) {
				f := newFixture(t)
				m := f.model(rule.discipline, rule.drop, queue.LateDrop, slow, fast)
				ranks := map[queue.ExecutorID]int32{f.executor(c.slow, 0, m): c.slow, f.executor(c.fast, 1, m): c.fast}
				f.Enqueue(c.at, m, &queue.Request{Deadline: 12})
				require.Equal(t, c.at, f.last().Start)
				require.Equal(t, c.want, ranks[f.last().Executor])
			})
		}
	}
}

// TestLateRequestsAreServedDuringAnOverload: at twice what an executor can do, requests that were given up are served within a bounded part of its
// time, in the order in which they came, and most of its time is for requests that are in time. Loads that it can do are served as ever.
func TestLateRequestsAreServedDuringAnOverload(t *testing.T) {
	for _, late := range []queue.Late{queue.LateServe, queue.LateDrop} {
		f := newFixture(t)
		m := f.model("adaptive", "reserve", late, linear)
		p := f.executor(0, 0, m)
		ends := queue.Never
		for now := queue.Time(0); now < 20_000; now++ {
			if now == ends {
				f.Complete(now, p)
			}
			if now%13 < 10 {
				f.enqueue(now, m, 1+int(now%2)) // 15 in 13, of which 8 can be served
			}
			f.Advance(now)
			ends = f.last().Finish
		}
		var lateTime, lateRows, rows queue.Time
		last := queue.Time(-1)
		for _, b := range f.batches {
			rows += queue.Time(b.Rows)
			if !b.Late {
				continue
			}
			lateTime += b.Finish - b.Start
			lateRows += queue.Time(b.Rows)
			require.GreaterOrEqual(t, b.Requests[0].Arrival, last, "in the order in which they came")
			last = b.Requests[len(b.Requests)-1].Arrival
		}
		t.Logf("%v: %d rows, %d late in %d", late, rows, lateRows, lateTime)
		if late == queue.LateDrop {
			require.Zero(t, lateRows)
			continue
		}
		require.Greater(t, lateTime, queue.Time(20_000/128))
		require.Less(t, lateTime, queue.Time(20_000/48))
	}
}

// TestTheSameEventsGiveTheSameDecisions, also where the models of an executor change, of which several are equally urgent.
func TestTheSameEventsGiveTheSameDecisions(t *testing.T) {
	var first []queue.Batch
	for i := range 30 {
		f := newFixture(t)
		var spec, changed queue.ExecutorSpec
		for j := range 12 {
			m := f.model("eager", "none", queue.LateServe, linear)
			spec.Serves = append(spec.Serves, queue.Service{Model: m})
			changed.Serves = append(changed.Serves, queue.Service{Model: m, MaxBatch: j % 2})
		}
		p := f.AddExecutor(0, spec)
		for _, s := range spec.Serves {
			f.enqueue(0, s.Model, 1)
		}
		require.NoError(t, f.SetExecutor(1, p, changed))
		for range spec.Serves {
			f.Complete(6, p)
		}
		if i == 0 {
			first = f.batches
		}
		for j, b := range f.batches {
			require.Equal(t, first[j].Model, b.Model, "batch %d of run %d", j, i)
		}
	}
}

// TestWhatAReconfigurationTakesOutDoesNotStart: requests are taken out of the queue within it, and no other request of their lane waits.
func TestWhatAReconfigurationTakesOutDoesNotStart(t *testing.T) {
	for name, takeOut := range map[string]func(f *fixture, m queue.ModelID, r *queue.Request){
		"cancelled": func(f *fixture, _ queue.ModelID, r *queue.Request) { require.True(f.t, f.Cancel(1, r)) },
		"emptied": func(f *fixture, m queue.ModelID, _ *queue.Request) {
			require.NoError(f.t, f.Empty(1, m, queue.DropOutage))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			m := f.model("eager", "prefix", queue.LateServe, linear)
			p := f.executor(0, 0, m)
			waiting := f.enqueue(0, m, 2)[1]
			f.Reconfigure(1, func() { takeOut(f, m, waiting) })
			require.Equal(t, queue.Never, f.Next())
			f.Complete(6, p)
			require.Len(t, f.batches, 1)
		})
	}
}
