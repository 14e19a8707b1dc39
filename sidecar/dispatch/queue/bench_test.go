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
)

// load drives a Scheduler the way the sidecar does: requests arrive, batches
// end when they should, requests are reused. It allocates nothing itself.
type load struct {
	s       *queue.Scheduler
	models  []queue.ModelID
	now     queue.Time
	gaps    []queue.Time // between arrivals, drawn beforehand
	picks   []uint8      // the model of each arrival
	i       int
	ends    []end // a heap
	free    []*queue.Request
	arrival queue.Time
	good    int
	bad     int
}

type end struct {
	at queue.Time
	b  *queue.Batch
}

// newLoad prepares models of 1.082b+5.204 ms with an SLO of 100 ms, with which
// Symphony's scheduler was measured, under a load that is a share of what the
// partitions can do in batches of 64.
func newLoad(tb testing.TB, discipline string, models, partitions int, share float64) *load {
	d, err := queue.NewDiscipline(discipline, nil)
	require.NoError(tb, err)
	table := queue.Linear(1082e3, 5204e3, 64)
	l := &load{gaps: make([]queue.Time, 1<<16), picks: make([]uint8, 1<<16), ends: make([]end, 0, partitions+1)}
	l.s = queue.New(preempting{l}, queue.Options{})
	for range models {
		l.models = append(l.models, l.s.AddModel(0, queue.ModelSpec{
			Classes: []queue.Table{table}, MaxBatch: 64, SLO: 100e6, Late: queue.LateDrop, Discipline: d,
		}))
	}
	var serves []queue.Service
	for _, m := range l.models {
		serves = append(serves, queue.Service{Model: m})
	}
	l.s.Reconfigure(0, func() {
		for rank := range partitions {
			l.s.AddPartition(0, queue.PartitionSpec{Rank: int32(rank), Serves: serves})
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	rate := share * float64(partitions) * 64 / float64(table.At(64))
	for i := range l.gaps {
		l.gaps[i] = queue.Time(rng.ExpFloat64() / rate)
		l.picks[i] = uint8(rng.IntN(models))
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
			r.Arrival, r.Deadline, r.Rows = l.now, l.now+100e6, 1
			l.i = (l.i + 1) % len(l.gaps)
			l.arrival += l.gaps[l.i]
			l.s.Enqueue(l.now, l.models[l.picks[l.i]], r)
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
	for _, r := range top.b.Requests {
		if top.at <= r.Deadline {
			l.good++
		} else {
			l.bad++
		}
		l.free = append(l.free, r)
	}
	l.s.Complete(l.now, top.b.Partition)
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

// processorTime is what this process has used. Requests per second are reckoned with that: what other processes take of the core is not the
// queue's time. With -cpu 1 it is one core's.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchmark(b *testing.B, share float64) {
	for _, c := range []struct{ models, partitions int }{{24, 10}, {24, 100}, {24, 1000}, {64, 4000}} {
		b.Run(fmt.Sprintf("%dx%d", c.models, c.partitions), func(b *testing.B) {
			l := newLoad(b, "adaptive", c.models, c.partitions, share)
			l.run(500 * c.partitions)
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
	for _, discipline := range queue.Names() {
		for _, share := range []float64{.5, .85, 1.5} {
			if share != .85 && !slices.Contains([]string{"adaptive", "deferred", "eager"}, discipline) {
				continue // one load will do
			}
			if discipline == "timeout" && share > 1 {
				continue // it drops nothing, so its queue never stops growing
			}
			l := newLoad(t, discipline, 24, 20, share)
			l.run(300 * 1000)
			require.Zero(t, testing.AllocsPerRun(5, func() { l.run(5 * 1000) }), "%s at %.2f", discipline, share)
			require.Positive(t, l.good)
		}
	}
}
