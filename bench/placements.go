// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/try"
)

// placement is a policy with parameters.
type placement struct {
	name, policy string
	parameters   map[string]string
	// search, where there is one, makes the plan that is judged of the policy's.
	search searching
}

func placements() []placement {
	all := []placement{
		{name: "gpulet_bestfit", policy: "gpulet", parameters: map[string]string{"partitioning": "bestfit"}},
		{name: "gpulet_evensplit", policy: "gpulet", parameters: map[string]string{"partitioning": "evensplit"}},
	}
	for _, name := range builtin.Names() {
		all = append(all, placement{name: name, policy: name})
	}
	slices.SortFunc(all, func(a, b placement) int { return strings.Compare(a.name, b.name) })
	return all
}

// ours is the policy that is compared with the best of the others.
const ours = "conch"

// evaluations are the budget of a plan, of those policies that ask for any.
const evaluations = 128

// budget is a part of that with --quick.
func (b *bench) budget() uint32 {
	if b.quick {
		return evaluations / 8
	}
	return evaluations
}

// holds is the part of all requests that may be bad: gpulet's own measure (section 5).
const holds = .01

// answer is the outcome of one question.
type answer struct {
	// refused says why there is no plan; empty: there is one.
	refused string
	plan    *policy.Plan
	// change from the plan in force, where there is one.
	change *try.Change
	// promised is what the policy itself counts on in requests per second, 0 where it does not say. Foreseen is the host's evaluation under the
	// traffic that the policy could see, simulated that under other traffic.
	promised            float64
	foreseen, simulated *policy.Outcome
}

func (a answer) holds() bool { return a.refused == "" && a.simulated.GetBadRate() <= holds }

// slowest is the 99th percentile latency over the SLO of the model where that is largest.
func slowest(s *policy.Snapshot, o *policy.Outcome) (most float64) {
	for _, m := range s.GetModels() {
		for _, outcome := range o.GetModels() {
			if outcome.GetModel() == m.GetName() {
				most = max(most, outcome.GetLatencyP99Us()/float64(m.GetSloUs()))
			}
		}
	}
	return most
}

// contest is one policy in one arena.
type contest struct {
	bench *bench
	arena arena
	placement
	// held is the step of the highest load that held; below deepest where none did.
	held int
	// wrong are the loads that held before judges whose profiles are wrong, one a draw.
	wrong []float64
	// asked are the answers by steps of the load: all judges have the same plans.
	asked map[int]answer
	// What it did at the loads that are common to all.
	over, below answer
	belowOf     *policy.Snapshot
	fewest      int // 0: it was not looked for; more than there are: none is enough
	elastic     bill
	took        []float64 // milliseconds per plan
}

// question is what the policy is asked on fixed GPUs.
func (c *contest) question(load float64, changes ...func(*policy.Snapshot)) (question, error) {
	return c.arena.ask(load, c.bench.seed, c.bench.simulated(1), func(s *policy.Snapshot) {
		s.Objective, s.Evaluations = policy.Objective_OBJECTIVE_MAX_GOODPUT, c.bench.budget()
		c.withApps(s)
		for _, change := range changes {
			change(s)
		}
	})
}

// solve asks the policy for a plan and judges it.
func (c *contest) solve(ctx context.Context, load float64, changes ...func(*policy.Snapshot)) (answer, *policy.Snapshot, error) {
	q, err := c.question(load, changes...)
	if err != nil {
		return answer{}, nil, err
	}
	a, took, err := judged(ctx, c.placement, q)
	c.took = append(c.took, took)
	return a, q.snapshot, err
}

// answerAt is what the policy answers at a step of the load.
func (c *contest) answerAt(ctx context.Context, k int) (answer, error) {
	a, known := c.asked[k]
	if known {
		return a, nil
	}
	a, _, err := c.solve(ctx, c.arena.at(k))
	if c.asked == nil {
		c.asked = map[int]answer{}
	}
	c.asked[k] = a
	return a, err
}

// bill is what a load takes on an elastic cluster. GPUs and cost are means over plans, loads, loading and stops over changes of plan.
type bill struct {
	refused         string
	gpus, cost, bad float64
	// changes of plan; 0: there was one plan. Loads are the models that one loads somewhere, loading the seconds that these take one after the other, and
	// stops the partitions that it ends or replaces.
	changes               int
	loads, loading, stops float64
}

func (b bill) holds() bool { return b.refused == "" && b.bad <= holds }

// rent asks for the cheapest plan on a cluster of twice as many GPUs: once, or, of a trace, every minute from what came in the minutes before it,
// with the last plan in force. What changes of plans cost is counted, by the difference that a live conch would apply, and not simulated.
func (c *contest) rent(ctx context.Context, load float64) (bill, error) {
	plans := 1
	if c.arena.trace != nil {
		plans = max(1, int(unseenMinutes*c.bench.simulated(1)))
	}
	var total bill
	var last *policy.Plan
	bad, arrivals := 0.0, 0.0
	for i := range plans {
		s := keep(c.arena.world(), c.arena.mix)
		var q question
		cheapest := func(s *policy.Snapshot) {
			c.withApps(s)
			doubled(s)
			s.Objective, s.Seed, s.Current, s.Evaluations = policy.Objective_OBJECTIVE_MIN_COST, c.bench.seed, last, c.bench.budget()
			s.Revision = uint64(i + 1) //nolint:gosec // small
		}
		var err error
		if c.arena.trace != nil {
			cheapest(s)
			q, err = c.arena.replay(s, load, c.bench.seed, i, 1)
		} else {
			q, err = c.arena.ask(load, c.bench.seed, c.bench.simulated(1), cheapest)
		}
		if err != nil {
			return total, err
		}
		a, _, err := judged(ctx, c.placement, q)
		if err != nil || a.refused != "" {
			return bill{refused: a.refused}, err
		}
		if last != nil {
			total.change(a.change)
		}
		last = a.plan
		n := float64(len(q.unseen.Arrivals))
		bad, arrivals = bad+n*a.simulated.GetBadRate(), arrivals+n
		total.gpus += float64(a.simulated.GetGpus()) / float64(plans)
		total.cost += a.simulated.GetCostPerHour() / float64(plans)
	}
	total.bad = bad / max(1, arrivals)
	if n := float64(total.changes); n > 0 {
		total.loads, total.loading, total.stops = total.loads/n, total.loading/n, total.stops/n
	}
	return total, nil
}

// change adds what a change of plan costs.
func (b *bill) change(c *try.Change) {
	b.changes++
	b.loads += float64(c.Loads)
	b.loading += c.LoadSeconds
	b.stops += float64(c.Stops)
}

// judged asks a policy, and simulates its plan under the traffic that it saw and under that which it did not.
func judged(ctx context.Context, p placement, q question) (a answer, ms float64, err error) {
	session, err := try.Open(ctx, try.Options{Policy: p.policy, Parameters: p.parameters, Traffic: q.recorded, Outcome: true})
	if err != nil {
		return a, 0, err
	}
	t, err := session.Run(ctx, q.snapshot)
	if err != nil {
		return a, 0, err
	}
	ms = float64(t.Took) / float64(time.Millisecond)
	if t.Error != "" || len(t.Violations) > 0 {
		a.refused = cmp.Or(t.Error, strings.Join(t.Violations, "; "))
		return a, ms, nil
	}
	if len(t.Outcome.GetViolations()) > 0 {
		a.refused = strings.Join(t.Outcome.GetViolations(), "; ")
		return a, ms, nil
	}
	a.plan, a.change, a.foreseen, a.promised = t.Plan, t.Change, t.Outcome, countedOn(q.snapshot, t.Plan)
	if p.search != nil {
		if a.plan, a.refused, err = p.searched(ctx, q, t.Plan); err != nil || a.refused != "" {
			return a, ms, err
		}
	}
	if a.simulated, err = q.judge(ctx, a.plan); err == nil {
		a.refused = strings.Join(a.simulated.GetViolations(), "; ")
	}
	return a, ms, err
}

// withApps makes every model the one variant of an app that is not asked for by name, for infaas: it plans for apps, and there is nothing to choose here.
func (p placement) withApps(s *policy.Snapshot) {
	if p.policy != "infaas" {
		return
	}
	for _, m := range s.GetModels() {
		s.Apps = append(s.Apps, &policy.App{Name: "app-" + m.GetName(), SloUs: m.GetSloUs(), Variants: []*policy.Variant{{Model: m.GetName(), Accuracy: 1}}})
	}
}

// countedOn is what a plan counts on: its predictions, else the rates of its instances, of no model more than comes.
func countedOn(s *policy.Snapshot, p *policy.Plan) (total float64) {
	by := make(map[string]float64)
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			by[in.GetModel()] += in.GetRate()
		}
	}
	for _, m := range s.GetModels() {
		total += min(m.GetRate(), by[m.GetName()])
	}
	if len(p.GetPredictions()) > 0 {
		total = 0
		for _, prediction := range p.GetPredictions() {
			total += prediction.GetGoodput()
		}
	}
	return total
}

// step is the ratio between neighbouring loads of a search. All policies are asked at the same loads, and so judged by the same arrivals.
const step = 1.02

func (a arena) at(k int) float64 { return a.guess * math.Pow(step, float64(k)) }

// deepest is the lowest step that is tried: less than a hundredth of the guess.
const deepest = -240

// search finds the highest load that holds, from a step on.
func (c *contest) search(ctx context.Context, from int) error {
	held, err := highestStep(from, func(k int) (bool, error) {
		a, err := c.answerAt(ctx, k)
		return a.holds(), err
	})
	if err != nil {
		return err
	}
	c.held = held
	c.bench.say(fmt.Sprintf("%s, %s: holds %.0f req/s; %d plans, the middle one in %.0f ms", c.arena.name, c.name, c.load(), len(c.took), median(c.took)))
	return nil
}

// highestStep is the highest that holds, looked for from one on: outwards in growing strides, then by halves. Where none does down to deepest, it is one less.
func highestStep(from int, holds func(int) (bool, error)) (int, error) {
	from = max(from, deepest)
	ok, err := holds(from)
	if err != nil {
		return 0, err
	}
	low, high, stride := from, from, 8
	for moved := ok; moved == ok; stride *= 2 {
		k := max(low-stride, deepest)
		if ok {
			k = high + stride
		} else if low == deepest {
			return deepest - 1, nil
		}
		if moved, err = holds(k); err != nil {
			return 0, err
		}
		low, high = min(low, k), max(high, k)
		if moved == ok { // the edge lies further out
			low, high = k, k
		}
	}
	for high-low > 1 {
		middle := (low + high) / 2
		if ok, err = holds(middle); err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}

// load that held.
func (c *contest) load() float64 { return c.arena.held(c.held) }

// held is the load of a step that held, in requests per second; 0 where none did.
func (a arena) held(k int) float64 {
	if k < deepest {
		return 0
	}
	return a.at(k)
}

// Loads that all policies are asked about, as parts of the highest that any of them held: on the fixed GPUs past it and below it, and on twice as many.
const (
	overPart    = 1.3
	belowPart   = .8
	elasticPart = .9
)

// common asks the policy at the loads that are common to all.
func (c *contest) common(ctx context.Context, best float64) (err error) {
	if c.over, _, err = c.solve(ctx, overPart*best); err != nil {
		return err
	}
	if c.below, c.belowOf, err = c.solve(ctx, belowPart*best); err != nil {
		return err
	}
	if c.elastic, err = c.rent(ctx, elasticPart*best); err != nil || c.arena.mixed {
		return err
	}
	// The fewest GPUs, found by bisection.
	low, high := 0, 2*c.total()+1
	for high-low > 1 {
		middle := (low + high) / 2
		a, _, err := c.solve(ctx, elasticPart*best, doubled, first(middle))
		if err != nil {
			return err
		}
		if a.holds() {
			high = middle
		} else {
			low = middle
		}
	}
	c.fewest = high
	return nil
}

// total is how many fixed GPUs there are.
func (c *contest) total() int { return len(c.arena.world().GetNodes()[0].GetGpus()) }

// placementMatrix compares placement policies in every arena: on fixed GPUs the load that each holds, and what it serves past that; on elastic ones how
// many GPUs it needs, and what they cost. Plans are judged by arrivals that the policy did not see.
func (b *bench) placementMatrix(ctx context.Context, r *figure.Report) error {
	all, err := arenas()
	if err != nil {
		return err
	}
	var lines [][]*contest
	for _, a := range all {
		if !strings.Contains("placements."+a.name, b.only) {
			continue
		}
		var line []*contest
		for _, p := range placements() {
			line = append(line, &contest{bench: b, arena: a, placement: p})
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return fmt.Errorf("placements: no scenario has %s in its name", b.only)
	}
	of := func(pick func(*contest) bool) (some []*contest) {
		for _, line := range lines {
			for _, c := range line {
				if pick(c) {
					some = append(some, c)
				}
			}
		}
		return some
	}
	if err := together(ctx, of(func(c *contest) bool { return c.name != ours }), func(ctx context.Context, c *contest) error { return c.search(ctx, 0) }); err != nil {
		return err
	}
	// Ours takes the longest for a plan: its search begins where the best of the others ends.
	if err := together(ctx, of(func(c *contest) bool { return c.name == ours }), func(ctx context.Context, c *contest) error {
		return c.search(ctx, bestOf(lines[lineOf(lines, c)], func(o *contest) float64 { return o.load() }).held)
	}); err != nil {
		return err
	}
	if err := together(ctx, of(func(*contest) bool { return true }), func(ctx context.Context, c *contest) error {
		best := 0.0
		for _, o := range lines[lineOf(lines, c)] {
			best = max(best, o.load())
		}
		return c.common(ctx, best)
	}); err != nil {
		return err
	}
	for _, line := range lines {
		for _, c := range line {
			c.report(r)
		}
	}
	placementSummary(lines, r)
	r.Emulated = "everything: simulated time on GPUs that are arithmetic, no delays; latencies and requirements of the models are ours (bench/arenas.go). Interference by gpulet's coefficients for the 2080 Ti."
	return placementText(b.out, lines)
}

func lineOf(lines [][]*contest, c *contest) int {
	return slices.IndexFunc(lines, func(line []*contest) bool { return line[0].arena.name == c.arena.name })
}

// ourContest is that of our policy.
func ourContest(line []*contest) *contest {
	return line[slices.IndexFunc(line, func(c *contest) bool { return c.name == ours })]
}

// bestOf is the contest with the highest value among the others' policies.
func bestOf(line []*contest, value func(*contest) float64) *contest {
	var best *contest
	for _, c := range line {
		if c.name != ours && (best == nil || value(c) > value(best)) {
			best = c
		}
	}
	return best
}

// together does something with contests, on all cores.
func together(ctx context.Context, all []*contest, run func(context.Context, *contest) error) error {
	return onAllCores(ctx, all, func(ctx context.Context, c *contest) error {
		if err := run(ctx, c); err != nil {
			return fmt.Errorf("%s, %s: %w", c.arena.name, c.name, err)
		}
		return nil
	})
}
