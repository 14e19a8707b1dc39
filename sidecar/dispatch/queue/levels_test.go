// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	simulated "github.com/conch-serving/conch/sidecar/sim/discipline"
)

// policed is one executor and one model whose requests have levels and expiries.
type policed struct {
	*recorder
	s       *queue.Scheduler
	m       queue.ModelID
	started func(*queue.Batch)
}

func newPoliced(t require.TestingT, spec queue.ModelSpec) *policed {
	p := &policed{recorder: &recorder{}}
	p.s = queue.New(p, queue.Options{})
	p.m = p.s.AddModel(0, spec)
	p.s.AddExecutor(0, queue.ExecutorSpec{Serves: []queue.Service{{Model: p.m}}})
	return p
}

func (p *policed) Dispatch(b *queue.Batch) {
	if p.started != nil {
		p.started(b)
	}
	p.recorder.Dispatch(b)
}

// until lets everything happen that is due before a moment; Never: all that is due.
func (p *policed) until(at queue.Time) {
	for {
		now := min(p.end(), p.s.Next())
		if now >= at {
			p.now = max(p.now, min(at, 1<<62))
			return
		}
		p.now = now
		if now == p.end() {
			p.running = p.running[1:]
			p.s.Complete(now, 1)
		} else {
			p.s.Advance(now)
		}
	}
}

func (p *policed) enqueue(at queue.Time, r queue.Request) {
	p.until(at)
	p.now = at
	r.Arrival = at
	p.s.Enqueue(at, p.m, &r)
}

// TestQueuePolicy shows Triton's queue policies: l(b) = b+1, at most two rows a batch, and no SLO.
func TestQueuePolicy(t *testing.T) {
	spec := queue.ModelSpec{Classes: []queue.Table{queue.Linear(unit, unit, 2)}, MaxBatch: 2}
	var (
		first  = queue.Request{Level: 1}
		reject = queue.Request{Level: 2, Expiry: 5 * unit, Expired: queue.LateDrop}
		delay  = queue.Request{Level: 3, Expiry: unit, Expired: queue.LateServe}
		two    = queue.Request{Level: 4, MaxQueue: 2}
	)
	type arrival struct {
		at queue.Time
		as queue.Request
	}
	for name, arrivals := range map[string][]arrival{
		// R5 to R7 came last and run first; R4 fills their second batch. R3, which was put off, is behind all.
		"levels": {{0, two}, {unit / 2, two}, {unit, delay}, {unit, reject}, {unit, first}, {unit, first}, {unit, first}},
		// R3 and R4 may wait for five: they are refused when that is over, while the executor is busy until 8.
		"levels-reject": {{0, first}, {0, first}, {unit, reject}, {unit, reject}, {unit, first}, {unit, first}, {2 * unit, first}, {2 * unit, first}},
		// R2 and R5 may wait for one, and are then served behind all others, those of their own level too.
		"levels-delay": {{0, first}, {unit / 2, delay}, {unit * 7 / 4, first}, {unit * 7 / 4, first}, {unit * 7 / 4, delay}, {unit * 9 / 2, delay}},
		// R1 runs, R2 and R3 wait, and R4 is refused. R5 finds room.
		"levels-full": {{0, two}, {unit / 4, two}, {unit / 2, two}, {unit, two}, {3 * unit, two}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPoliced(t, spec)
			for i, a := range arrivals {
				r := a.as
				r.Tag = i + 1
				if r.Expiry > 0 {
					r.Expiry += a.at
				}
				p.enqueue(a.at, r)
			}
			p.until(queue.Never)
			golden(t, name, p.log.String())
		})
	}
}

// TestAFullLevelDoesNotWait: a batch that would wait for more requests starts when its level has no room for them.
func TestAFullLevelDoesNotWait(t *testing.T) {
	d, err := simulated.New("deferred", nil)
	require.NoError(t, err)
	p := newPoliced(t, queue.ModelSpec{Classes: []queue.Table{queue.Linear(unit, unit, 8)}, MaxBatch: 8, SLO: 100 * unit, Discipline: d})
	for i := range 3 {
		p.enqueue(queue.Time(i), queue.Request{MaxQueue: 3, Tag: i})
	}
	require.Len(t, p.running, 1)
	require.Equal(t, 3, p.running[0].Rows)
}

// TestALevelThatHasRoomAgainWaits: a batch is ready because its level has no room, and waits for an executor. Once another batch of the level has started it waits for more requests.
func TestALevelThatHasRoomAgainWaits(t *testing.T) {
	d, err := simulated.New("deferred", nil)
	require.NoError(t, err)
	p := newPoliced(t, queue.ModelSpec{Classes: []queue.Table{queue.Linear(unit, unit, 8)}, MaxBatch: 8, SLO: 100 * unit, Discipline: d})
	var starts []queue.Time
	p.started = func(b *queue.Batch) { starts = append(starts, b.Start) }
	for key := range uint64(3) {
		p.enqueue(queue.Time(key), queue.Request{MaxQueue: int32(max(1, key)), Key: key, Tag: key})
	}
	p.until(queue.Never)
	require.Equal(t, []queue.Time{0, 2 * unit, 2 + 97*unit}, starts, "the last one waits until a second row could not join it")
}

// TestARequestThatEnlargesNothingExpires: the batch that waits is full, and nothing else is due.
func TestARequestThatEnlargesNothingExpires(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateServe)
	f.executor(0, 0, m)
	f.enqueue(0, m, 1)
	f.Enqueue(0, m, &queue.Request{Deadline: 10, Rows: 8})
	f.Enqueue(0, m, &queue.Request{Deadline: 20, Expiry: 12, Expired: queue.LateDrop})
	f.follow(13)
	require.Equal(t, []queue.DropReason{queue.DropExpired}, f.dropped)
}

// TestARequestThatHasExpiredIsNotQueuedAgain: it comes behind another one of its batch, which has no expiry.
func TestARequestThatHasExpiredIsNotQueuedAgain(t *testing.T) {
	f := newFixture(t)
	m := f.model("eager", "prefix", queue.LateServe)
	p := f.executor(0, 0, m)
	f.enqueue(0, m, 1)
	both := []*queue.Request{{Deadline: 5}, {Deadline: 20, Expiry: 8, Expired: queue.LateDrop}}
	for _, r := range both {
		f.Enqueue(0, m, r)
	}
	f.Complete(1, p)
	require.Len(t, f.last().Requests, 2)
	require.NoError(t, f.SetUp(10, p, false))
	f.Complete(10, p)
	for _, r := range both {
		r.Avoid = p
		f.Requeue(10, m, r)
	}
	require.Equal(t, []queue.DropReason{queue.DropExpired}, f.dropped)
}

// TestALateAlarmStartsNothingThatHasExpired: where an event is handled later than it was due, an expiry that has passed meanwhile counts first, whatever the
// event was for. Here a request waits for others, since some have come of late.
func TestALateAlarmStartsNothingThatHasExpired(t *testing.T) {
	const unit = 1000
	waited := 0
	for expiry := queue.Time(1); expiry < 12; expiry++ {
		for late := queue.Time(1); late < 12; late++ {
			d, err := simulated.New("adaptive", nil)
			require.NoError(t, err)
			p := newPoliced(t, queue.ModelSpec{Classes: []queue.Table{queue.Linear(4*unit, 2*unit, 2)}, MaxBatch: 2, SLO: 15 * unit, Late: queue.LateDrop, Discipline: d})
			for i := range 13 {
				p.enqueue(queue.Time(i)*6*unit, queue.Request{})
			}
			p.until(queue.Never)
			started := false
			p.started = func(*queue.Batch) { started = true }
			p.s.Enqueue(p.now, p.m, &queue.Request{Rows: 1, Arrival: p.now, Expiry: p.now + expiry*unit, Expired: queue.LateDrop})
			if !started {
				waited++
				p.s.Advance(p.now + (expiry+late)*unit)
				require.False(t, started, "expiry %d, late by %d", expiry, late)
			}
		}
	}
	require.Positive(t, waited)
}

// TestLowerLevelsKeepAShare: however much of the first level waits, of 16 batches one is of the others, in turn.
func TestLowerLevelsKeepAShare(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late %t", late), func(t *testing.T) {
			spec := queue.ModelSpec{Classes: []queue.Table{queue.Linear(unit, unit, 4)}, MaxBatch: 4}
			p := newPoliced(t, spec)
			const batches = 320
			count := map[int32]int{}
			p.started = func(b *queue.Batch) { count[b.Requests[0].Level]++ }
			for level := int32(1); level <= 3; level++ {
				for range 4 * batches {
					r := queue.Request{Level: level}
					if late {
						r.Expiry = 1 // served as late requests, all of them
					}
					p.enqueue(0, r)
				}
			}
			p.until(batches * 5 * unit)
			require.InDelta(t, batches*15/16, count[1], 2, "%v", count)
			require.InDelta(t, batches/32, count[2], 1, "%v", count)
			require.InDelta(t, batches/32, count[3], 1, "%v", count)
		})
	}
}

// TestLowerLevelsKeepAShareWhereBatchesWaitOnPurpose: the first level alone uses nine tenths of the executor, in full batches, and lower levels' batches of one
// wait for more requests until they could hardly be in time. Each waits for three or four batches of the first level, so that one in five or so has its turn.
func TestLowerLevelsKeepAShareWhereBatchesWaitOnPurpose(t *testing.T) {
	d, err := simulated.New("deferred", nil)
	require.NoError(t, err)
	p := newPoliced(t, queue.ModelSpec{Classes: []queue.Table{queue.Linear(10*unit, 50*unit, 8)}, MaxBatch: 8, SLO: 500 * unit, Late: queue.LateDrop, Discipline: d})
	served, lower := map[int32]int{}, 0
	p.started = func(b *queue.Batch) {
		for _, r := range b.Requests {
			served[r.Level]++
		}
	}
	random, at := rand.New(rand.NewPCG(1, 2)), queue.Time(0)
	for range 8000 { // 8 rows take 130 units
		at += queue.Time(random.ExpFloat64() * float64(18*unit))
		p.enqueue(at, queue.Request{Level: 1})
		if random.IntN(100) == 0 {
			lower++
			p.enqueue(at, queue.Request{Level: int32(2 + random.IntN(2))})
		}
	}
	p.until(queue.Never)
	require.Greater(t, served[1], 8000*99/100, "%v", served)
	require.Greater(t, served[2]+served[3], lower/6, "%v of %d", served, lower)
}

// TestLevelsUnderOverload: what is not lost of a load beyond what the executor can do is of the higher level, in time.
func TestLevelsUnderOverload(t *testing.T) {
	for _, discipline := range []string{"adaptive", "deferred", "eager", "target"} {
		t.Run(discipline, func(t *testing.T) {
			d, err := simulated.New(discipline, nil)
			require.NoError(t, err)
			p := newPoliced(t, queue.ModelSpec{Classes: []queue.Table{queue.Linear(unit, 5*unit, 8)}, MaxBatch: 8, SLO: 40 * unit, Late: queue.LateDrop, Discipline: d})
			served := map[int32]int{}
			p.started = func(b *queue.Batch) {
				for _, r := range b.Requests {
					if b.Finish <= r.Deadline {
						served[r.Level]++
					}
				}
			}
			const requests = 3000 // 8 rows take 13 units: a third of the load is of level 1, and the executor can do two thirds of all
			for i := range requests {
				p.enqueue(queue.Time(i)*unit, queue.Request{Level: int32(1 + min(i%3, 1))})
			}
			p.until(queue.Never)
			require.Greater(t, served[1], requests/3*90/100, "%v", served)
			require.Greater(t, served[1]+served[2], requests*8/13*85/100, "%v", served)
		})
	}
}

// TestLevelInvariants: on one executor that starts whatever waits, every request is answered once, a level's are served in the order of their
// expiries, and no level is passed over in sixteen batches in a row.
func TestLevelInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, err := simulated.New("eager", nil)
		require.NoError(t, err)
		p := newPoliced(t, queue.ModelSpec{MaxBatch: rapid.IntRange(1, 4).Draw(t, "max batch"), Discipline: d})
		var all []*sent
		waiting := func(level int32) (of []*sent) {
			for _, r := range all {
				if r.answers == 0 && r.Level == level && (r.Expiry == 0 || p.now <= r.Expiry) {
					of = append(of, r)
				}
			}
			return of
		}
		passed := 0
		p.started = func(b *queue.Batch) {
			first := b.Requests[0]
			if b.Late {
				for _, r := range b.Requests {
					r.Tag.(*sent).answered()
				}
				return
			}
			for _, o := range waiting(first.Level) {
				if o.Expiry > 0 && o.Expiry < first.Expiry {
					require.Fail(t, "not in the order of expiries")
				}
			}
			lower, higher := false, false
			for level := int32(1); level < first.Level; level++ {
				higher = higher || len(waiting(level)) > 0
			}
			for _, r := range b.Requests {
				r.Tag.(*sent).answered()
			}
			for level := first.Level + 1; level <= 4; level++ {
				lower = lower || len(waiting(level)) > 0
			}
			if passed++; higher || !lower {
				passed = 0
			}
			require.Less(t, passed, 16, "lower levels were passed over")
		}
		for at, i := queue.Time(0), 0; i < 200; i++ {
			at += queue.Time(rapid.IntRange(0, 2).Draw(t, "gap"))
			if rapid.IntRange(0, 4).Draw(t, "ends") == 0 && len(p.running) > 0 {
				p.now = at
				p.running = p.running[1:]
				p.s.Complete(at, 1)
				continue
			}
			r := &sent{Request: queue.Request{Arrival: at, Level: int32(rapid.IntRange(1, 4).Draw(t, "level")), MaxQueue: rapid.SampledFrom([]int32{0, 0, 3}).Draw(t, "max queue")}}
			if e := rapid.SampledFrom([]queue.Time{0, 0, 5, 50}).Draw(t, "expiry"); e > 0 {
				r.Expiry, r.Expired = at+e, rapid.SampledFrom([]queue.Late{queue.LateDrop, queue.LateServe}).Draw(t, "expired")
			}
			r.Tag = r
			all = append(all, r)
			p.now = at
			p.s.Advance(at)
			p.s.Enqueue(at, p.m, &r.Request)
		}
		for len(p.running) > 0 {
			p.now++
			p.running = p.running[1:]
			p.s.Complete(p.now, 1)
		}
		for _, r := range all {
			require.Equal(t, 1, r.answers)
		}
	})
}

// sent is a request and how often it was answered.
type sent struct {
	queue.Request
	answers int
}

func (r *sent) answered() { r.answers++ }

// Drop counts an answer of those requests that have one.
func (p *policed) Drop(r *queue.Request, why queue.DropReason) {
	p.recorder.Drop(r, why)
	if of, ok := r.Tag.(interface{ answered() }); ok {
		of.answered()
	}
}
