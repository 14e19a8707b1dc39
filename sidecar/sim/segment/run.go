// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Model is what is known of a model besides its latencies.
type Model struct {
	Name string
	// Operators is the length of its sequence.
	Operators int
}

// Scheduler chooses what a GPU runs: a [Controller] or a [Sequential].
type Scheduler interface {
	check() error
	// begin makes what decides in one run.
	begin() decider
}

// decider is a scheduler in a run.
type decider interface {
	// decide chooses, of the tasks that wait, what starts at a moment.
	decide(start time.Duration, waiting *line, w *World) Decision
	// deciding is how long that takes, and whether it is done while a group runs.
	deciding() (time.Duration, bool)
}

// Decision is what starts next.
type Decision struct {
	// Start is the moment that was decided for; the group starts later where the one before takes longer than predicted, and earlier where it is done
	// before.
	Start time.Duration
	// Group are the slices that run, of Queries, by number. Both are empty where all that waited was dropped.
	Group   []Slice
	Queries []int
	// Dropped are the numbers of queries that are given up.
	Dropped []int
	// Predicted is how long the group takes, without a margin.
	Predicted time.Duration
	// Asked is how often the predictor was asked, counting candidates that were asked for together as once.
	Asked int
}

func (d *Decision) add(id int, s Slice) {
	d.Queries, d.Group = append(d.Queries, id), append(d.Group, s)
}

// World is one GPU and the models that it serves.
type World struct {
	Models []Model
	// Predictor is what schedulers ask.
	Predictor Predictor
	// Truth is what groups take on average; nil: what the Predictor says.
	Truth Predictor
	// Error is by how much a single group takes longer or shorter than that: the standard deviation, as a share. No group is off by more than three
	// deviations.
	Error float64
	// Watch, unless nil, sees every decision when it is made.
	Watch func(Decision)
	// Ran, unless nil, sees every group when it ends, by the start and the end of its execution.
	Ran func(d Decision, start, end time.Duration)
}

// PublishedError is the mean absolute error of the paper's predictor for pairs, as a share (section 5.5).
const PublishedError = .057

// Deviation is the standard deviation of normal errors with this mean of absolute values.
func Deviation(meanAbsolute float64) float64 { return meanAbsolute * math.Sqrt(math.Pi/2) }

// Result is what a run gave.
type Result struct {
	Outcomes Outcomes
	// Groups were executed, Overlapped of them with more than one query, Cut of them with a query that was not finished.
	Groups, Overlapped, Cut int
	// Asked is the sum of [Decision.Asked].
	Asked int
	// Looked counts the waiting queries that were looked at or moved: what simulating the run took.
	Looked int
	// Busy is the time in which the GPU ran a group.
	Busy time.Duration
}

// Run serves the queries, which are in the order of arrival. The seed is that of the errors of predictions: the n-th group has the same one under
// every scheduler. It fails with the error of ctx once that ends. Work under a [Controller] grows with the queries and with the models of a GPU, not with how many
// queries wait; a [Sequential] without rounds looks at all that wait for each decision.
func (w *World) Run(ctx context.Context, queries []Query, s Scheduler, seed uint64) (*Result, error) {
	r, err := w.runner(queries, s, seed)
	if err != nil {
		return nil, err
	}
	for r.step() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	r.result.Looked = r.waiting.looked
	return r.result, nil
}

// runner is a run in progress.
type runner struct {
	w         *World
	scheduler decider
	queries   []Query
	errors    *rand.Rand
	result    *Result

	now     time.Duration
	arrived int
	waiting *line // what is in a group is not in it
	running *Decision
	began   time.Duration // of the group that runs
	tasks   []task        // of the group that runs
	end     time.Duration // of the group that runs
	planned *Decision
	taken   []task        // of the group that is planned
	ready   time.Duration // when the planned decision is made
}

func (w *World) runner(queries []Query, s Scheduler, seed uint64) (*runner, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if w.Error < 0 || w.Error > .3 {
		return nil, fmt.Errorf("segment: errors of predictions with a deviation of %v; 0 to .3 can be simulated", w.Error)
	}
	for i, m := range w.Models {
		if m.Operators < 1 {
			return nil, fmt.Errorf("segment: model %d, %s, has %d operators; at least 1 is needed", i, m.Name, m.Operators)
		}
	}
	for i, q := range queries {
		switch {
		case q.Model < 0 || q.Model >= len(w.Models):
			return nil, fmt.Errorf("segment: query %d is for model %d of %d", i, q.Model, len(w.Models))
		case q.Arrival < 0 || i > 0 && q.Arrival < queries[i-1].Arrival:
			return nil, fmt.Errorf("segment: query %d arrives at %v, before its predecessor or the start", i, q.Arrival)
		}
	}
	r := &runner{w: w, scheduler: s.begin(), queries: queries, errors: rand.New(rand.NewPCG(seed, 0x5e6)), waiting: newLine(len(w.Models)), result: &Result{Outcomes: make(Outcomes, len(queries))}}
	return r, nil
}

// step goes to the next moment at which something happens. At one moment a group ends first, then queries arrive, then the scheduler decides, then a
// group starts.
func (r *runner) step() bool {
	next, more := time.Duration(math.MaxInt64), false
	at := func(t time.Duration) { next, more = min(next, t), true }
	if r.running != nil {
		at(r.end)
	} else if r.planned != nil {
		at(max(r.now, r.ready))
	}
	if r.arrived < len(r.queries) {
		at(r.queries[r.arrived].Arrival)
	}
	if !more {
		return false
	}
	r.now = next
	if r.running != nil && r.end <= r.now {
		r.finish()
	}
	for ; r.arrived < len(r.queries) && r.queries[r.arrived].Arrival <= r.now; r.arrived++ {
		r.waiting.push(task{id: r.arrived, Query: r.queries[r.arrived]})
	}
	r.decide()
	if r.running == nil && r.planned != nil && r.ready <= r.now {
		r.start()
	}
	return true
}

// decide plans the next group, as soon as something waits that can be in it: while a group runs, for its predicted end.
func (r *runner) decide() {
	takes, ahead := r.scheduler.deciding()
	for r.planned == nil && (r.running == nil || ahead) {
		if r.waiting.begun = r.unfinished(); r.waiting.empty() {
			return
		}
		start := r.now + takes
		if r.running != nil {
			start = max(start, r.began+r.running.Predicted)
		}
		d := r.scheduler.decide(start, r.waiting, r.w)
		if r.w.Watch != nil {
			r.w.Watch(d)
		}
		r.result.Asked += d.Asked
		for _, id := range d.Dropped {
			r.result.Outcomes[id] = Outcome{Query: r.queries[id], Dropped: true, End: r.now}
		}
		gone := func(t task) bool { return slices.Contains(d.Dropped, t.id) }
		if i := slices.IndexFunc(r.tasks, gone); i >= 0 {
			r.tasks[i].next = r.w.Models[r.tasks[i].Model].Operators // what still runs of it is the last of it
		}
		r.waiting.remove(r.queries, d.Dropped)
		if len(d.Group) == 0 {
			continue
		}
		r.planned, r.ready = &d, r.now+takes
		r.taken = r.taken[:0]
		for i, id := range d.Queries {
			q := r.queries[id]
			r.taken = append(r.taken, task{id: id, next: d.Group[i].End, Query: q})
		}
		r.waiting.remove(r.queries, d.Queries)
	}
}

// unfinished is what the group that runs leaves of its queries, as the scheduler sees it: with the operators done that the group has.
func (r *runner) unfinished() (left []task) {
	for _, t := range r.tasks {
		if r.running != nil && t.next < r.w.Models[t.Model].Operators {
			left = append(left, t)
		}
	}
	return left
}

// start runs the planned group.
func (r *runner) start() {
	d := r.planned
	r.began = r.now
	r.running, r.planned = d, nil
	r.tasks = append(r.tasks[:0], r.taken...)
	usual := d.Predicted
	if r.w.Truth != nil {
		usual = r.w.Truth.Latency(d.Group)
	}
	length := time.Duration(float64(usual) * (1 + r.w.Error*min(3, max(-3, r.errors.NormFloat64()))))
	r.end = r.now + max(1, length)
	r.result.Groups++
	r.result.Busy += r.end - r.now
	if len(d.Group) > 1 {
		r.result.Overlapped++
	}
	r.decide()
}

// finish answers what the group that ran has completed. What it has not goes on in the group that is planned, or was dropped when that was decided.
func (r *runner) finish() {
	for _, t := range r.tasks {
		switch {
		case r.result.Outcomes[t.id].Dropped:
		case t.next >= r.w.Models[t.Model].Operators:
			r.result.Outcomes[t.id] = Outcome{Query: t.Query, End: r.end}
		default:
			r.result.Cut++
		}
	}
	if r.w.Ran != nil {
		r.w.Ran(*r.running, r.began, r.end)
	}
	r.running = nil
}
