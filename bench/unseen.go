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
	"text/tabwriter"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

const (
	// developmentSeed draws the loads that adaptive was developed on. finalSeed was chosen when its development was over; its loads were measured, rules
	// were changed, and they were measured again. unseenSeed was drawn after that, from /dev/urandom, once, on 24 November 2026.
	developmentSeed, finalSeed, unseenSeed = 20260101, 20261122, 757701353
	// unseenRequests is how many requests of the rarest model a trial has at least, unseenMost how many of all models at most.
	unseenRequests, unseenMost = 4000, 60000
	// longestTrial is in seconds.
	longestTrial = 4000
	// unseenTolerance ends a bisection.
	unseenTolerance = .005
)

// dropPolicies are those that may suit a discipline.
func dropPolicies() []string { return []string{"window", "thrift", "prefix", "reserve"} }

// otherRules are the disciplines that do not preempt, each under the drop policies that may suit it.
func otherRules() (all []scenario.Dispatch) {
	for _, d := range []string{"deferred", "eager", "target", "duty-cycle", "timeout"} {
		for _, drop := range dropPolicies() {
			all = append(all, rule(d, drop, nil))
		}
	}
	return append(all, rule("earliest-latest", "prefix", nil))
}

// verdict of a draw: adaptive and the best other rule, on seeds other than those that chose which is the best.
type verdict struct {
	draw            draw
	rival           scenario.Dispatch
	adaptive, other float64
	ratios          []float64 // by seed
}

func (o *verdict) ratio() float64 { return stat.GeometricMean(o.ratios, nil) }

// requests of a trial: enough of the rarest model, and of surges some.
func (d *draw) seconds(rate float64) float64 {
	sum, least := 0.0, math.Inf(1)
	for _, m := range d.scenario.Models {
		sum += m.Weight
		least = min(least, m.Weight)
	}
	n := min(unseenMost, unseenRequests*sum/least) / cmp.Or(d.part, 1)
	seconds := max(n/rate, 10*d.slowest/cmp.Or(d.part, 1), 3)
	if d.surges {
		seconds = max(seconds, 30)
	}
	return min(seconds, max(3*unseenMost/rate, 5), longestTrial)
}

// entrant is a rule, adaptive with other constants than its own unless nil.
type entrant struct {
	rule   scenario.Dispatch
	params *adaptive.Params
	// tolerance of the search; 0 means unseenTolerance.
	tolerance float64
}

// search is for the goodput of a rule from a guess on.
func (d *draw) search(e entrant, guess, step float64, seed uint64) sim.Search {
	s := *d.scenario
	s.Dispatch = e.rule
	return sim.Search{
		Guess: guess, Tolerance: cmp.Or(e.tolerance, unseenTolerance), Step: step, Seeds: []uint64{seed},
		Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
			run, seconds := s, d.seconds(rate)
			run.Duration, run.Warmup = duration(seconds), duration(max(.6, min(seconds/10, 2)))
			return run.Run(ctx, scenario.Options{Rate: rate, Seed: seed, Adaptive: e.params})
		},
	}
}

// holds reports whether a rule holds a rate.
func (d *draw) holds(ctx context.Context, r scenario.Dispatch, rate float64, seed uint64) (bool, error) {
	result, err := d.search(entrant{rule: r}, rate, 0, seed).Run(ctx, rate, seed)
	if err != nil {
		return false, err
	}
	return result.WorstBadRate() <= .01, nil
}

// highest is the goodput of a rule under a seed.
func (d *draw) highest(ctx context.Context, e entrant, guess, step float64, seed uint64) (float64, error) {
	found, err := sim.Goodput(ctx, d.search(e, guess, step, seed))
	if err != nil {
		return 0, err
	}
	return found.Rate, nil
}

// against finds what adaptive holds, the best rule of the others, and the ratio of the two on further seeds.
func (d *draw) against(ctx context.Context, seed uint64, seeds int) (*verdict, error) {
	highest := func(r scenario.Dispatch, guess, step float64, seed uint64) (float64, error) {
		return d.highest(ctx, entrant{rule: r}, guess, step, seed)
	}
	ours := rule("adaptive", "", nil)
	mine, err := highest(ours, .7*d.capacity, 1.25, seed)
	if err != nil {
		return nil, err
	}
	o := &verdict{draw: *d}
	best := .8 * mine
	for _, r := range otherRules() {
		ok, err := d.holds(ctx, r, max(best, .01*d.capacity), seed)
		if err != nil {
			return nil, err
		}
		if !ok && o.rival.Discipline != "" {
			continue // it is not the best
		}
		rate, err := highest(r, max(best, .01*d.capacity), 1.05, seed)
		if err != nil {
			return nil, err
		}
		if o.rival.Discipline == "" || rate > best {
			o.rival, best = r, rate
		}
	}
	var first, second []float64
	for k := range uint64(seeds) {
		a, err := highest(ours, max(mine, .01*best), 1.03, seed+1+k)
		if err != nil {
			return nil, err
		}
		b, err := highest(o.rival, max(best, .01*d.capacity), 1.03, seed+1+k)
		if err != nil {
			return nil, err
		}
		first, second = append(first, max(a, 1e-3)), append(second, max(b, 1e-3))
		o.ratios = append(o.ratios, max(a, 1e-3)/max(b, 1e-3))
	}
	o.adaptive, o.other = stat.GeometricMean(first, nil), stat.GeometricMean(second, nil)
	return o, nil
}

// drawnLoads are those of a seed.
func (b *bench) drawnLoads(seed uint64) (all []draw) {
	n := 60
	if b.quick {
		n = 4
	}
	for k := range n {
		d := drawLoad(seed, k)
		if b.quick {
			d.part = 20
		}
		all = append(all, d)
	}
	return all
}

// verdicts are those of the loads that --only lets through, in their order.
func (b *bench) verdicts(ctx context.Context, set string, loads []draw) ([]*verdict, error) {
	loads = slices.DeleteFunc(loads, func(d draw) bool { return !strings.Contains("unseen."+set+"."+d.name, b.only) })
	all := make([]*verdict, len(loads))
	err := onAllCores(ctx, indices(loads), func(ctx context.Context, k int) error {
		d := loads[k]
		o, err := d.against(ctx, b.seed, b.roundsOr(2))
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		all[k] = o
		b.say(fmt.Sprintf("%s: %.1f req/s, %s with %s %.1f, %.3f", d.name, o.adaptive, o.rival.Discipline, o.rival.DropPolicy, o.other, o.ratio()))
		return nil
	})
	return all, err
}

// unseenSet is a set of loads: those that a seed draws, or, with seed 0, the named ones.
type unseenSet struct {
	name string
	seed uint64
	is   string
}

func unseenSets() []unseenSet {
	return []unseenSet{
		{"named", 0, "the loads that the generator was made after"},
		{"development", developmentSeed, "the seed that `adaptive` was developed on"},
		{"final", finalSeed, "measured, then rules were changed, then measured again: no unseen seed any more"},
		{"unseen", unseenSeed, "drawn and measured once, on 24 November 2026; the queue has changed since"},
	}
}

// unseen sets adaptive against the best other rule on loads that seeds draw.
func (b *bench) unseen(ctx context.Context, r *figure.Report) error {
	w := tabwriter.NewWriter(b.out, 0, 4, 2, ' ', 0)
	for _, set := range unseenSets() {
		loads := namedLoads()
		if set.seed != 0 {
			loads = b.drawnLoads(set.seed)
		}
		all, err := b.verdicts(ctx, set.name, loads)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			continue
		}
		var ratios []float64
		for _, o := range all {
			name := "unseen." + set.name + "." + o.draw.name + ".ratio"
			r.AddMean(name, o.ratios, "ratio", fmt.Sprintf("%s req/s; best other %s with %s, %s", figure.Number(o.adaptive), o.rival.Discipline, o.rival.DropPolicy, figure.Number(o.other)))
			ratios = append(ratios, o.ratio())
			fmt.Fprintf(w, "%s\t%s\t%s\t%s %s\t%.3f\n", name, figure.Number(o.adaptive), figure.Number(o.other), o.rival.Discipline, o.rival.DropPolicy, o.ratio())
		}
		within := 0
		for _, v := range ratios {
			if v >= .97 {
				within++
			}
		}
		r.AddRuns("unseen."+set.name+".worst", []float64{slices.Min(ratios)}, "ratio", fmt.Sprintf("of %d loads", len(ratios)))
		r.AddRuns("unseen."+set.name+".within", []float64{float64(within) / float64(len(ratios))}, "ratio", "of the loads: adaptive holds at least .97 of the best other rule")
	}
	r.Emulated = "everything: simulated time, no delays, every model on every GPU; at most 1% bad of every model's requests"
	return w.Flush()
}
