// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"cmp"
	"math"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// state is a schedule of the requests before some request: what it leaves.
type state struct {
	free  [MaxGPUs]queue.Time // when each GPU is free, sorted
	drops int
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
	order []ranked
	// row is what a request costs that a plan leaves to a batch that reaches past
	// its end.
	row float64
}

// ranked is the score of state i of a list.
type ranked struct {
	score float64
	i     int
}

func newSearcher(m Model, s Search) *searcher {
	return &searcher{m: m, s: s, lists: make([][]state, m.MaxBatch+1)}
}

// closed returns the best schedule that deals with all requests with these
// arrivals, the first of which is the head of the queue, on GPUs with these free
// times. Nothing starts before now.
//
// A schedule deals with requests in order of their deadlines: it drops the next
// one, or starts it with the b-1 that follow on the GPU that is free first, as
// soon as all of them are there. Schedules that deal with the same requests are
// compared by how long the GPUs remain busy and by the price of their drops.
func (f *searcher) closed(now queue.Time, free [MaxGPUs]queue.Time, arrivals []queue.Time) state {
	var best *state
	f.search(now, free, arrivals, func(i int, st *state) {
		if i == len(arrivals) && best == nil {
			best = st // what is kept first has the smallest score
		}
	})
	return *best
}

// open returns the best schedule that may end in the midst of a batch: the last
// requests may wait for others that come after them, as long as one more than
// them could still be served. Had a plan to deal with all that it expects, its
// last batch would have to end with the last of them, and that would dictate
// where every batch before it ends, down to the first.
//
// Schedules with different ends are compared at the last arrival: by how long the
// GPUs then remain busy, the price of drops, and the time that the requests left
// will take in batches of the size within reach.
func (f *searcher) open(now queue.Time, free [MaxGPUs]queue.Time, arrivals []queue.Time) state {
	n := len(arrivals)
	last := max(now, arrivals[n-1])
	best, least := state{}, math.Inf(1)
	f.search(now, free, arrivals, func(i int, st *state) {
		if i < n && (n-i >= f.m.MaxBatch || max(st.free[0], last)+f.m.Table.At(n-i+1) > arrivals[i]+f.m.SLO) {
			return
		}
		end := *st
		if score := f.score(&end, last) + float64(n-i)*f.row; score < least {
			best, least = *st, score
		}
	})
	return best
}

// search passes every state that it keeps to found, with its next request.
func (f *searcher) search(now queue.Time, free [MaxGPUs]queue.Time, arrivals []queue.Time, found func(i int, st *state)) {
	for i := range f.lists {
		f.lists[i] = f.lists[i][:0]
	}
	f.lists[0] = append(f.lists[0], state{free: free})
	at := now
	for i := range len(arrivals) + 1 {
		if i < len(arrivals) {
			at = max(now, arrivals[i])
		}
		list := &f.lists[i%len(f.lists)]
		f.prune(*list, at)
		*list = (*list)[:0]
		for k := range f.kept {
			found(i, &f.kept[k])
			if i < len(arrivals) {
				f.extend(f.kept[k], now, i, arrivals)
			}
		}
	}
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
func (f *searcher) prune(states []state, now queue.Time) {
	f.order = f.order[:0]
	for i := range states {
		f.order = append(f.order, ranked{f.score(&states[i], now), i})
	}
	slices.SortFunc(f.order, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.i, b.i)) })
	f.kept = f.kept[:0]
	for _, r := range f.order {
		if len(f.kept) == max(1, f.s.Beam) {
			return
		}
		if !f.beaten(&states[r.i]) {
			f.kept = append(f.kept, states[r.i])
		}
	}
}

// score moves a state's free times up to now and adds up the time for which its
// GPUs remain busy and the price of its drops.
func (f *searcher) score(st *state, now queue.Time) float64 {
	sum := queue.Time(st.drops) * f.s.Price
	free := st.free[:f.m.GPUs]
	for k, t := range free {
		free[k] = max(t, now)
		sum += free[k] - now
	}
	return float64(sum)
}

// beaten reports whether a state that is kept already is as good.
func (f *searcher) beaten(st *state) bool {
	for i := range f.kept {
		if f.kept[i].beats(st, f.m.GPUs, f.s.Spread) {
			return true
		}
	}
	return false
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
	best := newSearcher(m, s).closed(0, [MaxGPUs]queue.Time{}, arrivals)
	return Result{Requests: len(arrivals), Bad: best.drops, Rows: len(arrivals) - best.drops}, nil
}
