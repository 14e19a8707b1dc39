// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
	simulated "github.com/conch-serving/conch/sidecar/sim/discipline"
)

// play is a small world that writes down what happens: every model has
// l(b) = b+5 and is on every GPU. It runs until nothing is left to do.
type play struct {
	log     strings.Builder
	now     queue.Time
	running []*queue.Batch
}

// arrivals of n requests of a model, in units.
type arrivals struct {
	at    queue.Time
	model string
	n     int
}

// every is one request at a time, from a moment until another.
func every(model string, from, gap, until queue.Time) (all []arrivals) {
	for at := from; at < until; at += gap {
		all = append(all, arrivals{at, model, 1})
	}
	return all
}

func perform(t *testing.T, discipline string, params map[string]string, gpus int, slo queue.Time, script []arrivals) string {
	t.Helper()
	d, err := simulated.New(discipline, params)
	require.NoError(t, err)
	p := &play{}
	s := queue.New(p, queue.Options{RateWindow: 20 * unit})
	ids := map[string]queue.ModelID{}
	spec := queue.ExecutorSpec{}
	for _, name := range []string{"A", "B", "C"} {
		ids[name] = s.AddModel(0, queue.ModelSpec{
			Name: name, Classes: []queue.Table{queue.Linear(unit, 5*unit, 32)}, MaxBatch: 32, SLO: slo * unit, Late: queue.LateDrop, Discipline: d,
		})
		spec.Serves = append(spec.Serves, queue.Service{Model: ids[name]})
	}
	for range gpus {
		s.AddExecutor(0, spec)
		spec.Rank++
	}
	slices.SortStableFunc(script, func(a, b arrivals) int { return int(a.at - b.at) })
	count := map[string]int{}
	for {
		arrival, end := queue.Never, queue.Never
		if len(script) > 0 {
			arrival = script[0].at * unit
		}
		for _, b := range p.running {
			end = min(end, b.Finish)
		}
		p.now = min(arrival, end, s.Next())
		switch p.now {
		case queue.Never:
			return p.log.String()
		case end:
			i := slices.IndexFunc(p.running, func(b *queue.Batch) bool { return b.Finish == end })
			id := p.running[i].Executor
			p.running = slices.Delete(p.running, i, i+1)
			s.Complete(p.now, id)
		case arrival:
			for range script[0].n {
				name := script[0].model
				count[name]++
				s.Enqueue(p.now, ids[name], &queue.Request{Arrival: p.now, Tag: fmt.Sprint(name, count[name])})
			}
			script = script[1:]
		default:
			s.Advance(p.now)
		}
	}
}

func owners(b *queue.Batch) string {
	var all []string
	for _, r := range b.Requests {
		all = append(all, r.Tag.(string))
	}
	return strings.Join(all, " ")
}

func (p *play) Dispatch(b *queue.Batch) {
	fmt.Fprintf(&p.log, "%5.1f  GPU %d until %.1f: %s\n", seconds(b.Start), b.Executor, seconds(b.Finish), owners(b))
	p.running = append(p.running, b)
}

func (p *play) Preempt(b *queue.Batch) {
	fmt.Fprintf(&p.log, "%5.1f  GPU %d is taken from %s\n", seconds(p.now), b.Executor, owners(b))
	p.running = slices.DeleteFunc(p.running, func(o *queue.Batch) bool { return o == b })
}

func (p *play) Drop(r *queue.Request, why queue.DropReason) {
	fmt.Fprintf(&p.log, "%5.1f  drop %v: %v\n", seconds(p.now), r.Tag, why)
}

// TestPapersExamples has examples that are small enough to follow by hand; a comment
// beside each says what it shows.
func TestPapersExamples(t *testing.T) {
	for _, c := range []struct {
		name, discipline string
		params           map[string]string
		gpus             int
		slo              queue.Time
		script           []arrivals
	}{
		// A waits for two, B for one a cycle of 16; C is skipped until it has
		// something, and then gets one a turn, because its rate asks for no more.
		{"duty-cycle", "duty-cycle", map[string]string{"cycle": "16s"}, 1, 40, slices.Concat(every("A", 0, 8, 96), every("B", 1, 16, 96), []arrivals{{48, "C", 1}, {64, "C", 2}})},
		// When the first ends at 6, two wait of B and three of A, of which two run
		// together, for there is no size three. B has to start by 21-7 = 14, A by
		// 22-7 = 15, so B goes first. A's last cannot make it behind both.
		{"earliest-latest", "earliest-latest", nil, 1, 20, []arrivals{{0, "A", 1}, {1, "B", 2}, {2, "A", 3}}},
		// Three of B take the place of one A, which is served later nevertheless;
		// two of C are more than one A, but not three times as many.
		{"flex", "flex", nil, 1, 25, []arrivals{{0, "A", 1}, {1, "B", 3}, {11, "C", 2}}},
		{"flex-without-preemption", "flex", map[string]string{"preempt": "0"}, 1, 25, []arrivals{{0, "A", 1}, {1, "B", 3}, {2, "C", 4}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			golden(t, c.name, perform(t, c.discipline, c.params, c.gpus, c.slo, c.script))
		})
	}
}

// TestSizesOfSmallRequests: of batch sizes from a list, what is left after a larger request was left out has a size of the list, too.
func TestSizesOfSmallRequests(t *testing.T) {
	f := newFixture(t)
	m := f.model("earliest-latest", "none", queue.LateServe, linear)
	p := f.executor(0, 0, m)
	f.enqueue(0, m, 1)
	for _, rows := range []int32{1, 1, 1, 2} {
		f.Enqueue(1, m, &queue.Request{Arrival: 1, Rows: rows})
	}
	f.Complete(6, p)
	require.Len(t, f.last().Requests, 2, "three rows are no size")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// preemptive is a fixture whose batches can be preempted.
type preemptive struct {
	*fixture
	preempted []queue.ExecutorID
}

func (p *preemptive) Preempt(b *queue.Batch) { p.preempted = append(p.preempted, b.Executor) }

func newPreemptive(t *testing.T) *preemptive {
	p := &preemptive{fixture: newFixture(t)}
	p.Scheduler = queue.New(p, queue.Options{RateWindow: 20})
	return p
}

func TestFlexTakesTheSmallestThatIsSmallEnough(t *testing.T) {
	f := newPreemptive(t)
	m := f.model("flex", "prefix", queue.LateDrop, queue.Linear(0, 6, 8))
	other := f.model("eager", "prefix", queue.LateDrop, queue.Linear(0, 6, 8))
	a, b := f.executor(0, 0, m, other), f.executor(1, 0, m, other)
	f.enqueue(0, other, 1) // on a; no batch of flex, so it is not preempted
	lost := f.enqueue(0, m, 1)
	require.Equal(t, b, f.last().Executor)
	f.enqueue(1, m, 2)
	require.Empty(t, f.preempted)
	f.enqueue(2, m, 1)
	require.Equal(t, []queue.ExecutorID{b}, f.preempted)
	require.Equal(t, 3, f.last().Rows)
	n, _ := f.Queued(m)
	require.Equal(t, 1, n, "what ran waits again")
	require.Equal(t, uint64(1), f.Stats().Preempted)
	require.Equal(t, uint64(1), f.Stats().PreemptedRequests)
	f.Complete(6, a)
	require.True(t, slices.Equal(lost, f.last().Requests))
	require.Empty(t, f.dropped)
	require.True(t, f.Cancel(6, f.enqueue(6, m, 1)[0]))
}

// What a closed model still executes may lose its executor; its requests do not come back to a queue that takes none.
func TestFlexTakesFromAClosedModel(t *testing.T) {
	f := newPreemptive(t)
	m := f.model("flex", "prefix", queue.LateDrop, queue.Linear(0, 6, 8))
	closed := f.model("flex", "prefix", queue.LateDrop, queue.Linear(0, 6, 8))
	p := f.executor(0, 0, m, closed)
	f.enqueue(0, closed, 1)
	discipline, err := simulated.New("flex", nil)
	require.NoError(t, err)
	require.NoError(t, f.SetModel(1, closed, queue.ModelSpec{Name: "closed", Closed: true, MaxBatch: 8, Discipline: discipline}))
	require.Empty(t, f.dropped)
	f.enqueue(1, m, 3)
	require.Equal(t, []queue.ExecutorID{p}, f.preempted)
	require.Equal(t, m, f.last().Model)
	require.Len(t, f.dropped, 1)
	n, _ := f.Queued(closed)
	require.Zero(t, n)
}

func TestFlexWithoutAPreemptor(t *testing.T) {
	f := newFixture(t)
	m := f.model("flex", "prefix", queue.LateDrop, queue.Linear(0, 6, 8))
	small := f.model("flex", "prefix", queue.LateDrop, queue.Linear(0, 6, 8))
	p := f.executor(0, 0, m, small)
	f.enqueue(0, small, 2)
	f.enqueue(1, m, 3)
	require.Len(t, f.batches, 1, "a sink that cannot preempt is not asked to")
	f.Complete(6, p)
	require.Equal(t, m, f.last().Model, "the larger first, though the other is more urgent")
}

func TestTurnsArePerExecutor(t *testing.T) {
	f := newFixture(t)
	params := map[string]string{"cycle": "1s"}
	var m []queue.ModelID
	for range 3 {
		m = append(m, f.modelWith("duty-cycle", params, "none", queue.LateDrop, linear))
	}
	a, b := f.executor(0, 0, m...), f.executor(1, 0, m...)
	f.enqueue(0, m[1], 1)
	require.Equal(t, a, f.last().Executor)
	f.enqueue(0, m[2], 1)
	require.Equal(t, b, f.last().Executor)
	for _, id := range m {
		f.enqueue(1, id, 12)
	}
	f.Complete(6, a)
	require.Equal(t, m[2], f.last().Model, "after the second the third")
	f.Complete(6, b)
	require.Equal(t, m[0], f.last().Model, "after the third the first")
	f.Complete(20, b)
	require.Equal(t, m[1], f.last().Model)
	f.Complete(20, a)
	require.Equal(t, m[0], f.last().Model)
	f.Complete(40, a)
	require.Equal(t, m[1], f.last().Model)
}

func TestDutyCycleBatch(t *testing.T) {
	table := queue.Linear(1e6, 5e6, 64)
	for _, c := range []struct {
		name      string
		cycle     string
		rate      float64
		executors int
		want      int
	}{
		{"rate times cycle", "20ms", 400, 1, 8},
		{"dealt out to two executors", "20ms", 400, 2, 4},
		{"rounded up", "20ms", 10, 1, 1},
		{"the model's own limit", "1s", 4000, 1, 64},
		{"saturated: 2 l(b) <= SLO", "0s", 1e6, 1, 15},
		{"residue: l(b) + b/rate <= SLO", "0s", 200, 1, 5}, // 10 + 25
		{"as much as one executor does: saturated", "0s", 750, 8, 15},
		{"residue, dealt out to two executors", "0s", 700, 2, 9}, // 14 + 26
		{"rate unknown", "0s", 0, 1, 15},
	} {
		d, err := simulated.New("duty-cycle", map[string]string{"cycle": c.cycle})
		require.NoError(t, err)
		got := d.(queue.Sizer).MaxRows(&queue.Load{Model: &adaptive.Model{Table: table, MaxBatch: 64, SLO: 40e6, Rate: c.rate, Executors: c.executors}})
		require.Equal(t, c.want, got, c.name)
	}
}

func TestTargetStartsWhenItIsReached(t *testing.T) {
	f := newFixture(t)
	// Without a rate yet, the target is the largest b with 2 l(b) <= SLO.
	m := f.model("target", "window", queue.LateDrop, queue.Linear(1, 2, 8))
	f.executor(0, 0, m)
	f.enqueue(0, m, 3)
	require.Empty(t, f.batches)
	f.enqueue(1, m, 1)
	require.Equal(t, 4, f.last().Rows)

	g := newFixture(t)
	m = g.model("target", "window", queue.LateDrop, queue.Linear(1, 2, 8))
	g.executor(0, 0, m)
	g.enqueue(0, m, 3)
	require.Equal(t, queue.Time(12-6), g.Next(), "d - l(4), as under deferred")
}

func TestParametersThatMakeNoSense(t *testing.T) {
	for _, c := range []struct{ discipline, name, value string }{
		{"duty-cycle", "cycle", "-1s"}, {"duty-cycle", "cycle", "20"},
		{"earliest-latest", "sizes", ""}, {"earliest-latest", "sizes", "2,4"}, {"earliest-latest", "sizes", "1,4,4"}, {"earliest-latest", "sizes", "1;2"},
		{"flex", "preempt", "1"}, {"flex", "preempt", "-3"}, {"flex", "preempt", "often"}, {"flex", "preempt", "NaN"},
	} {
		_, err := simulated.New(c.discipline, map[string]string{c.name: c.value})
		require.ErrorContains(t, err, fmt.Sprintf("%s=%q is not", c.name, c.value))
	}
}
