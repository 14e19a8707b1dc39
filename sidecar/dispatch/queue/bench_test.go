// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	simulated "github.com/conch-serving/conch/sidecar/sim/discipline"
)

// load drives a Scheduler the way the sidecar does: requests arrive, batches
// end when they should, requests are reused. It allocates nothing itself.
type load struct {
	traffic
	s       *queue.Scheduler
	ids     []queue.ModelID
	now     queue.Time
	gaps    []queue.Time // between arrivals, drawn beforehand
	picks   []uint8      // the model of each arrival
	i       int
	ends    []end // a heap
	free    []*queue.Request
	arrival queue.Time
	good    int
	bad     int
	came    int // requests
	ended   int // batches
	down    queue.ExecutorID
	lost    []*queue.Request
}

// traffic is what a load consists of.
type traffic struct {
	discipline        string
	models, executors int
	share             float64 // of what the executors can do in batches of 64
	slow              bool    // every second executor takes twice as long
	keys              int     // above 1: requests share a batch with those of their key only
	late              queue.Late
	// Every so many batches one fails: its executor is down until the next one fails, and its requests are queued again, once.
	fails int
	// Every so many requests one is cancelled, and one would be late even alone.
	cancels, hopeless int
	// levels: requests have so many priority levels, an expiry, and a limit of how many wait; 0: none of these.
	levels int
}

type end struct {
	at queue.Time
	b  *queue.Batch
}

// newLoad prepares models of 1.082b+5.204 ms with an SLO of 100 ms, with which
// Symphony's scheduler was measured.
func newLoad(tb testing.TB, of traffic) *load {
	d, err := simulated.New(of.discipline, nil)
	require.NoError(tb, err)
	table := queue.Linear(1082e3, 5204e3, 64)
	l := &load{traffic: of, gaps: make([]queue.Time, 1<<16), picks: make([]uint8, 1<<16), ends: make([]end, 0, of.executors+1)}
	l.s = queue.New(preempting{l}, queue.Options{})
	spec := queue.ModelSpec{Classes: []queue.Table{table}, MaxBatch: 64, SLO: 100e6, Late: of.late, Discipline: d}
	if of.slow {
		spec.Classes = append(spec.Classes, queue.Linear(2*1082e3, 2*5204e3, 64))
	}
	for range of.models {
		l.ids = append(l.ids, l.s.AddModel(0, spec))
	}
	l.s.Reconfigure(0, func() {
		for rank := range of.executors {
			var serves []queue.Service
			for _, m := range l.ids {
				serves = append(serves, queue.Service{Model: m, Class: int32(rank % len(spec.Classes))})
			}
			l.s.AddExecutor(0, queue.ExecutorSpec{Rank: int32(rank), Serves: serves})
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	rate := of.share * float64(of.executors) * 64 / float64(table.At(64))
	for i := range l.gaps {
		l.gaps[i] = queue.Time(rng.ExpFloat64() / rate)
		l.picks[i] = uint8(rng.IntN(of.models))
	}
	return l
}

// run lets n more requests arrive.
func (l *load) run(n int) {
	for n > 0 {
		switch due := l.s.Next(); {
		case len(l.ends) > 0 && l.ends[0].at <= min(l.arrival, due):
			l.finish()
		case due <= l.arrival:
			l.now = due
			l.s.Advance(due)
		default:
			l.now = l.arrival
			r := l.request()
			r.Arrival, r.Deadline, r.Rows, r.Avoid = l.now, l.now+100e6, 1, queue.NoExecutor
			l.i = (l.i + 1) % len(l.gaps)
			l.arrival += l.gaps[l.i]
			if l.came++; l.keys > 1 {
				r.Key = uint64(l.came % l.keys)
			}
			if l.hopeless > 0 && l.came%l.hopeless == 1 {
				r.Deadline = l.now + 1
			}
			if l.levels > 0 {
				r.Level, r.Expiry, r.Expired, r.MaxQueue = int32(l.came%l.levels), l.now+60e6, queue.Late(l.came%2), 60
			}
			l.s.Enqueue(l.now, l.ids[l.picks[l.i]], r)
			if l.cancels > 0 && l.came%l.cancels == 0 && l.s.Cancel(l.now, r) {
				l.free = append(l.free, r)
			}
			n--
		}
	}
}

func (l *load) request() *queue.Request {
	if n := len(l.free); n > 0 {
		r := l.free[n-1]
		l.free = l.free[:n-1]
		return r
	}
	return new(queue.Request)
}

func (l *load) Drop(r *queue.Request, _ queue.DropReason) {
	l.bad++
	l.free = append(l.free, r)
}

func (l *load) Dispatch(b *queue.Batch) {
	l.ends = append(l.ends, end{b.Finish, b})
	h := l.ends
	for i := len(h) - 1; i > 0 && h[i].at < h[(i-1)/2].at; i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
}

func (l *load) finish() {
	h := l.ends
	top := h[0]
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c+1 < n && h[c+1].at < h[c].at {
			c++
		}
		if c >= n || h[i].at <= h[c].at {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	l.ends = h
	l.now = top.at
	if l.ended++; l.fails > 0 && l.ended%l.fails == 0 {
		l.fail(top.b)
		return
	}
	for _, r := range top.b.Requests {
		if top.at <= r.Deadline {
			l.good++
		} else {
			l.bad++
		}
		l.free = append(l.free, r)
	}
	l.s.Complete(l.now, top.b.Executor)
}

// fail does what the dispatcher does when an executor goes down under a batch.
func (l *load) fail(b *queue.Batch) {
	p, m := b.Executor, b.Model
	l.lost = append(l.lost[:0], b.Requests...)
	if l.down != queue.NoExecutor {
		_ = l.s.SetUp(l.now, l.down, true)
	}
	_ = l.s.SetUp(l.now, p, false)
	l.down = p
	l.s.Complete(l.now, p)
	l.s.Reconfigure(l.now, func() {
		for _, r := range l.lost {
			if r.Avoid == queue.NoExecutor {
				r.Avoid = p
				l.s.Requeue(l.now, m, r)
			} else {
				l.Drop(r, queue.DropLate)
			}
		}
	})
}

// preempting is a load whose batches can be preempted.
type preempting struct{ *load }

func (l preempting) Preempt(b *queue.Batch) {
	i := slices.IndexFunc(l.ends, func(e end) bool { return e.b == b })
	l.ends = slices.Delete(l.ends, i, i+1)
	slices.SortFunc(l.ends, func(x, y end) int { return cmp.Compare(x.at, y.at) }) // sorted is a heap
}

// BenchmarkCore measures the whole path of a request through the queue on one
// core: enqueue, candidate update, matchmaking, dispatch, completion. One
// operation is one request.
func BenchmarkCore(b *testing.B) { benchmark(b, .85) }

// BenchmarkOverload is BenchmarkCore at twice the load that can be served.
func BenchmarkOverload(b *testing.B) { benchmark(b, 2) }

// processorTime is the processor time that this process has used. Requests per second are computed with it, so that the time of other
// processes on the core does not count. With -cpu 1 it is that of one core.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchmark(b *testing.B, share float64) {
	for _, c := range []struct{ models, executors int }{{24, 10}, {24, 100}, {24, 1000}, {64, 4000}} {
		b.Run(fmt.Sprintf("%dx%d", c.models, c.executors), func(b *testing.B) {
			l := newLoad(b, traffic{discipline: "adaptive", models: c.models, executors: c.executors, share: share, late: queue.LateDrop})
			l.run(500 * c.executors)
			l.good, l.bad = 0, 0
			before := l.s.Stats()
			b.ReportAllocs()
			b.ResetTimer()
			used := processorTime(b)
			l.run(b.N)
			used = processorTime(b) - used
			b.StopTimer()
			b.ReportMetric(float64(b.N)/used.Seconds(), "requests/s")
			after := l.s.Stats()
			b.ReportMetric(float64(after.Dispatched-before.Dispatched)/float64(after.Batches-before.Batches+1), "rows/batch")
			if l.good+l.bad > 0 {
				b.ReportMetric(100*float64(l.good)/float64(l.good+l.bad), "%good")
			}
		})
	}
}

// TestNoAllocations is the budget: none, once queues have reached their sizes.
func TestNoAllocations(t *testing.T) {
	usual := traffic{models: 24, executors: 20, share: .85, late: queue.LateDrop}
	cases := map[string]traffic{}
	for _, discipline := range simulated.Names() {
		of := usual
		of.discipline = discipline
		cases[discipline] = of
	}
	for _, discipline := range []string{"adaptive", "deferred", "eager"} {
		for _, share := range []float64{.5, 1.5} {
			of := cases[discipline]
			of.share = share
			cases[fmt.Sprintf("%s at %g", discipline, share)] = of
		}
	}
	for name, change := range map[string]func(*traffic){
		"one at a time":           func(of *traffic) { of.share = .001 },
		"two profile classes":     func(of *traffic) { of.slow = true },
		"late ones served":        func(of *traffic) { of.late, of.models, of.hopeless = queue.LateServe, 4, 20 },
		"four keys":               func(of *traffic) { of.keys = 4 },
		"more keys than are kept": func(of *traffic) { of.keys = 50 },
		"failing batches":         func(of *traffic) { of.fails = 20 },
		"cancelled requests":      func(of *traffic) { of.cancels = 10 },
		"queue policies":          func(of *traffic) { of.levels, of.share, of.late = 3, 1.2, queue.LateServe },
		"all of these": func(of *traffic) {
			of.slow, of.late, of.models, of.share, of.hopeless, of.keys, of.fails, of.cancels = true, queue.LateServe, 1, .2, 10, 12, 20, 10
		},
	} {
		of := cases["adaptive"]
		change(&of)
		cases["adaptive, "+name] = of
	}
	for name, of := range cases {
		t.Run(name, func(t *testing.T) {
			l := newLoad(t, of)
			l.run(300 * 1000)
			require.Zero(t, testing.AllocsPerRun(5, func() { l.run(5 * 1000) }))
			require.Positive(t, l.good)
			st := l.s.Stats()
			require.Equal(t, of.late == queue.LateServe, st.LateBatches > 0)
			require.Equal(t, of.fails > 0, st.Requeued > 0)
			require.Equal(t, of.cancels > 0, st.Cancelled > 0)
		})
	}
}

// TestLateOnesAreServedInTheEnd: under low load lanes wait on purpose, so that some
// lane always waits. Late requests get an executor nevertheless.
func TestLateOnesAreServedInTheEnd(t *testing.T) {
	for _, share := range []float64{.2, .4, .6, .8} {
		l := newLoad(t, traffic{discipline: "adaptive", models: 24, executors: 20, share: share, late: queue.LateServe, hopeless: 20})
		l.run(200 * 1000)
		st := l.s.Stats()
		require.Greater(t, st.LateDispatched, uint64(9*1000), "of ten thousand, at %g", share)
		require.Less(t, st.LateRequests, 300, "at %g", share)
	}
}

// TestBurstsAreRememberedThroughSilence: a model whose requests come in bursts, with a silence between them that is longer than the rate
// window, gathers the next burst instead of giving its first request an executor.
func TestBurstsAreRememberedThroughSilence(t *testing.T) {
	f := newFixture(t)
	f.Scheduler = queue.New(f, queue.Options{})
	m := f.AddModel(0, queue.ModelSpec{Name: "m", Classes: []queue.Table{queue.Linear(1e6, 20e6, 64)}, MaxBatch: 64, SLO: 100e6, Late: queue.LateDrop})
	f.executor(0, 0, m)
	f.executor(1, 0, m)
	now := queue.Time(0)
	burst := func() (sizes []int) {
		now += 30e9
		from := len(f.batches)
		for i := range 20 {
			f.Advance(now + queue.Time(i)*1e4)
			f.enqueue(now+queue.Time(i)*1e4, m, 1)
		}
		for at := f.Next(); at < now+1e9; at = f.Next() {
			f.Advance(at)
		}
		for _, b := range f.batches[from:] {
			f.Complete(now+1e9, b.Executor)
		}
		for _, b := range f.batches[from:] {
			sizes = append(sizes, b.Rows)
		}
		return sizes
	}
	require.Equal(t, 1, burst()[0], "nothing is known")
	for range 20 {
		burst()
	}
	require.Equal(t, []int{20}, burst())
}
