// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"cmp"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// state is a schedule of the requests before some request: what it leaves.
type state struct {
	free  [MaxGPUs]queue.Time // when each GPU is free, sorted
	drops int
	score float64
	first step
}

// step is a schedule's first batch, with the requests that it drops before. No
// rows: it has none.
type step struct {
	drops, rows int
	start       queue.Time
}

// searcher holds the states of a search, one list per next request, for as many
// requests as a batch can span.
type searcher struct {
	m     Model
	s     Search
	lists [][]state
	kept  []state
}

func newSearcher(m Model, s Search) *searcher {
	return &searcher{m: m, s: s, lists: make([][]state, m.MaxBatch+1)}
}

// search returns the best schedule of requests with these arrivals, the first
// of which is the head of the queue, on GPUs with these free times. Nothing
// starts before now.
//
// A schedule deals with requests in order of their deadlines: it drops the next
// one, or starts it with the b-1 that follow on the GPU that is free first, as
// soon as all of them are there. Schedules that deal with the same requests are
// compared by how long the GPUs remain busy and by the price of their drops.
func (f *searcher) search(now queue.Time, free [MaxGPUs]queue.Time, arrivals []queue.Time) state {
	for i := range f.lists {
		f.lists[i] = f.lists[i][:0]
	}
	f.lists[0] = append(f.lists[0], state{free: free})
	for i, arrival := range arrivals {
		list := &f.lists[i%len(f.lists)]
		states := f.prune(*list, max(now, arrival))
		*list = (*list)[:0]
		for _, st := range states {
			f.extend(st, now, i, arrivals)
		}
	}
	last := now
	if n := len(arrivals); n > 0 {
		last = max(now, arrivals[n-1])
	}
	return f.prune(f.lists[len(arrivals)%len(f.lists)], last)[0]
}

// extend adds every schedule that goes one step further.
func (f *searcher) extend(st state, now queue.Time, i int, arrivals []queue.Time) {
	next := st
	next.drops++
	if next.first.rows == 0 {
		next.first.drops++
	}
	f.add(i+1, next)
	deadline := arrivals[i] + f.m.SLO
	for b := 1; b <= f.m.MaxBatch && i+b <= len(arrivals); b++ {
		start := max(st.free[0], arrivals[i+b-1], now)
		end := start + f.m.Table.At(b)
		if end > deadline {
			return // so would be any larger batch
		}
		next := st
		k := 0
		for ; k+1 < f.m.GPUs && next.free[k+1] < end; k++ {
			next.free[k] = next.free[k+1]
		}
		next.free[k] = end
		if next.first.rows == 0 {
			next.first.rows, next.first.start = b, start
		}
		f.add(i+b, next)
	}
}

func (f *searcher) add(i int, st state) {
	list := &f.lists[i%len(f.lists)]
	*list = append(*list, st)
}

// prune keeps the best schedules: those of the smallest score, without those
// that another one equals or beats, up to the spread, in every free time and in
// drops.
func (f *searcher) prune(states []state, now queue.Time) []state {
	for i := range states {
		st := &states[i]
		st.score = float64(st.drops) * float64(f.s.Price)
		for k := range st.free[:f.m.GPUs] {
			st.free[k] = max(st.free[k], now)
			st.score += float64(st.free[k] - now)
		}
	}
	slices.SortStableFunc(states, func(a, b state) int { return cmp.Compare(a.score, b.score) })
	f.kept = f.kept[:0]
	for i := range states {
		if len(f.kept) == max(1, f.s.Beam) {
			break
		}
		if !slices.ContainsFunc(f.kept, func(o state) bool { return o.beats(&states[i], f.m.GPUs, f.s.Spread) }) {
			f.kept = append(f.kept, states[i])
		}
	}
	return f.kept
}

func (st *state) beats(o *state, gpus int, spread queue.Time) bool {
	if st.drops > o.drops {
		return false
	}
	for k := range gpus {
		if st.free[k] > o.free[k]+spread {
			return false
		}
	}
	return true
}

// Clairvoyant schedules requests with the given arrivals, in order, all of which
// it knows from the start.
func Clairvoyant(m Model, s Search, arrivals []queue.Time) (Result, error) {
	if err := m.check(); err != nil {
		return Result{}, err
	}
	best := newSearcher(m, s).search(0, [MaxGPUs]queue.Time{}, arrivals)
	return Result{Requests: len(arrivals), Bad: best.drops, Rows: len(arrivals) - best.drops}, nil
}
