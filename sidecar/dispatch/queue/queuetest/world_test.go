// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package queuetest_test measures queue disciplines on virtual time: Poisson
// or bursty arrivals, executors that take l(b) for a batch, or nearly.
//
// sidecar/sim is the simulator for users, and can do all of this too. It is not
// used here because it stands above the queue: it brings the snapshot, plans, the
// forecast and the policies along, whose faults would then fail the queue's tests,
// and the queue may not import any of them (internal/depcheck). Two independent
// harnesses that agree, about the goodput of Symphony's table 2 in both packages'
// tests, are worth more than one.
package queuetest_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Workload is a set of models on a set of executors under an open-loop
// Poisson load.
type Workload struct {
	Models []queue.ModelSpec
	// Shares are the models' parts of the rate; nil means equal parts.
	Shares []float64
	// Executors gives the profile class of each executor; every executor
	// serves every model.
	Executors []int32
	// Seconds is how long requests arrive; the first Warmup of them do not count.
	Seconds, Warmup float64
	Seed            uint64
	// Shape makes each model's arrivals a Gamma renewal process of that shape:
	// below 1 they come in bursts. Zero means Poisson, which is shape 1.
	Shape float64
	// Delay is how long a batch travels, and Jitter the relative standard
	// deviation of its time on the executor. The tables of Models allow for
	// both: they are Inflated times the mean time on the executor, plus Delay.
	Delay            queue.Time
	Jitter, Inflated float64
}

// Equal returns n executors of profile class 0.
func Equal(n int) []int32 { return make([]int32, n) }

// Copies returns the same model n times.
func Copies(spec queue.ModelSpec, n int) []queue.ModelSpec {
	all := make([]queue.ModelSpec, n)
	for i := range all {
		all[i] = spec
	}
	return all
}

// Result is the outcome of a workload at one rate.
type Result struct {
	// Sent and Bad count each model's requests; bad ones were late or dropped.
	Sent, Bad []int
	// MeanBatch is rows per batch, Busy the busy share of all executors.
	MeanBatch, Busy float64
	// MeanLatency is that of all requests that were answered, in seconds, and
	// Used how many executors ran anything after the warm-up.
	MeanLatency float64
	Used        int
	Stats       queue.Stats
}

// WorstBad is the bad share of the model that fares worst.
func (r Result) WorstBad() float64 {
	worst := 0.0
	for i, n := range r.Sent {
		if n > 0 {
			worst = max(worst, float64(r.Bad[i])/float64(n))
		}
	}
	return worst
}

// runWorkload offers the workload at a total rate in requests per second.
func runWorkload(w Workload, rate float64) Result {
	rng := rand.New(rand.NewPCG(w.Seed, 0x636f6e6368))
	s := &sim{
		counted: queue.Time(w.Warmup * 1e9), rng: rng, delay: w.Delay, jitter: w.Jitter, inflated: max(1, w.Inflated),
		result: Result{Sent: make([]int, len(w.Models)), Bad: make([]int, len(w.Models))},
		models: make(map[queue.ModelID]int), used: make(map[queue.ExecutorID]bool),
	}
	s.queue = queue.New(s, queue.Options{})
	ids := make([]queue.ModelID, len(w.Models))
	total := 0.0
	for i, spec := range w.Models {
		ids[i] = s.queue.AddModel(0, spec)
		s.models[ids[i]] = i
		share := 1.0
		if w.Shares != nil {
			share = w.Shares[i]
		}
		total += share
	}
	s.queue.Reconfigure(0, func() {
		for rank, class := range w.Executors {
			spec := queue.ExecutorSpec{Rank: int32(rank)}
			for _, id := range ids {
				spec.Serves = append(spec.Serves, queue.Service{Model: id, Class: class})
			}
			s.queue.AddExecutor(0, spec)
		}
	})
	end := queue.Time(w.Seconds * 1e9)
	arrivals := newArrivals(w, rng, rate/total)
	arrival, model := arrivals.next()
	for {
		if arrival >= end {
			arrival = queue.Never
		}
		done := s.nextDone()
		due := min(arrival, done, s.queue.Next())
		if due == queue.Never {
			break
		}
		s.now = due
		switch due {
		case done:
			id := s.running[0].executor
			s.finish()
			s.queue.Complete(due, id)
		case arrival:
			i := model
			if due >= s.counted {
				s.result.Sent[i]++
			}
			r := s.request()
			*r = queue.Request{Arrival: due, Deadline: due + w.Models[i].SLO, Rows: 1, Tag: &ids[i]}
			s.queue.Enqueue(due, ids[i], r)
			arrival, model = arrivals.next()
		default:
			s.queue.Advance(due)
		}
	}
	s.result.Stats = s.queue.Stats()
	if n := s.result.Stats.Batches; n > 0 {
		s.result.MeanBatch = float64(s.rows) / float64(n)
	}
	if s.answered > 0 {
		s.result.MeanLatency = s.latency / float64(s.answered)
	}
	s.result.Used = len(s.used)
	s.result.Busy = float64(s.busy) / float64(s.now) / float64(len(w.Executors))
	return s.result
}

// Goodput bisects for the largest total rate at which no model has more than
// 1% bad requests, to within half a percent, starting from a guess.
func Goodput(w Workload, guess float64) float64 {
	holds := func(rate float64) bool { return runWorkload(w, rate).WorstBad() <= .01 }
	lo, hi := 0.0, guess
	for holds(hi) {
		lo, hi = hi, hi*1.25
	}
	for lo == 0 {
		if next := hi / 1.25; holds(next) {
			lo = next
		} else {
			hi = next
		}
		if hi < 1 {
			return 0
		}
	}
	for hi-lo > .005*hi {
		if mid := math.Sqrt(lo * hi); holds(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// sim is the world around the queue: executors that take their time.
type sim struct {
	queue            *queue.Scheduler
	now              queue.Time
	counted          queue.Time
	models           map[queue.ModelID]int
	running          []run // a heap by end
	free             []*queue.Request
	rows             int
	busy             queue.Time
	result           Result
	rng              *rand.Rand
	delay            queue.Time
	jitter, inflated float64
	used             map[queue.ExecutorID]bool
	latency          float64 // the sum, in seconds
	answered         int
}

type run struct {
	end      queue.Time
	executor queue.ExecutorID
	batch    *queue.Batch
}

func (s *sim) request() *queue.Request {
	if n := len(s.free); n > 0 {
		r := s.free[n-1]
		s.free = s.free[:n-1]
		return r
	}
	return new(queue.Request)
}

// Dispatch implements queue.Sink.
func (s *sim) Dispatch(b *queue.Batch) {
	s.rows += b.Rows
	s.busy += b.Finish - b.Start
	if b.Start >= s.counted {
		s.used[b.Executor] = true
	}
	end := b.Finish
	if s.jitter > 0 {
		mean := float64(b.Finish-b.Start-s.delay) / s.inflated
		end = b.Start + s.delay + queue.Time(mean*max(.5, 1+s.jitter*s.rng.NormFloat64()))
	}
	s.running = append(s.running, run{end, b.Executor, b})
	for i := len(s.running) - 1; i > 0 && s.running[i].end < s.running[(i-1)/2].end; i = (i - 1) / 2 {
		s.running[i], s.running[(i-1)/2] = s.running[(i-1)/2], s.running[i]
	}
}

// Drop implements queue.Sink.
func (s *sim) Drop(r *queue.Request, _ queue.DropReason) { s.answer(r, true) }

func (s *sim) answer(r *queue.Request, bad bool) {
	if bad && r.Arrival >= s.counted {
		s.result.Bad[s.models[*r.Tag.(*queue.ModelID)]]++
	}
	s.free = append(s.free, r)
}

func (s *sim) nextDone() queue.Time {
	if len(s.running) == 0 {
		return queue.Never
	}
	return s.running[0].end
}

// finish answers the batch that ends first.
func (s *sim) finish() {
	h := s.running
	for _, r := range h[0].batch.Requests {
		s.latency += float64(h[0].end-r.Arrival) / 1e9
		s.answered++
		s.answer(r, h[0].end > r.Deadline)
	}
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].end < h[c].end {
			c++
		}
		if h[i].end <= h[c].end {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	s.running = h
}

// Preempt implements queue.Preemptor: the batch never ends.
func (s *sim) Preempt(b *queue.Batch) {
	s.rows -= b.Rows
	s.busy -= b.Finish - s.now
	i := slices.IndexFunc(s.running, func(r run) bool { return r.batch == b })
	s.running = slices.Delete(s.running, i, i+1)
	slices.SortFunc(s.running, func(x, y run) int { return cmp.Compare(x.end, y.end) }) // sorted is a heap
}
