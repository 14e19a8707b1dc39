// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim/bound"
	"github.com/conch-serving/conch/sidecar/sim/discipline"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// set is some models that share GPUs.
type set struct {
	name     string
	profiles []zoo.Profile
}

// sets of the comparison: copies of table 2's ResNet50, and of the zoo all, the third with the largest beta/alpha and the third with the smallest.
func sets() ([]set, error) {
	cases, err := zoo.Cases()
	if err != nil {
		return nil, err
	}
	var all []set
	for _, n := range []int{1, 2, 8, 20} {
		equal := set{name: fmt.Sprintf("equal%d", n)}
		for range n {
			equal.profiles = append(equal.profiles, cases[0].Profile)
		}
		all = append(all, equal)
	}
	a100, err := zoo.Profiles(zoo.A100)
	if err != nil {
		return nil, err
	}
	gtx, err := zoo.Profiles(zoo.GTX1080Ti)
	if err != nil {
		return nil, err
	}
	third := len(a100) / 3
	return append(all, set{"a100", a100}, set{"gtx1080ti", gtx}, set{"strong", a100[:third]}, set{"weak", a100[len(a100)-third:]}), nil
}

// column is one load of the matrix; its goodput under each discipline is a line of what is printed.
type column struct {
	set    set
	gpus   int
	shape  float64 // of the Gamma distribution of gaps; 1 is Poisson
	zipf   float64 // exponent of popularity; 0: all alike
	looser float64 // by how much the SLOs are longer than published
	each   bool    // every model must have at most 1% bad, not all requests together
	bound  float64
}

func (c column) name() string {
	arrivals, popularity, slo := "poisson", "equal", "tight"
	if c.shape != 1 {
		arrivals = "gamma" + strings.TrimPrefix(fmt.Sprintf("%.2f", c.shape), "0.")
	}
	if c.zipf > 0 {
		popularity = "zipf"
	}
	if c.looser > 1 {
		slo = "loose"
	}
	name := fmt.Sprintf("%s.%s.%s.%s.gpus%d", c.set.name, arrivals, popularity, slo, c.gpus)
	if c.each {
		name += ".each"
	}
	return name
}

// says reports whether a load is measured. Left out are popularity where there is one model; loads of which the bound says that not even one
// request per second and model can be held; and what each model gets, but under Poisson arrivals for models that are many.
func (c column) says() bool {
	switch {
	case c.zipf > 0 && len(c.set.profiles) == 1, c.each && (len(c.set.profiles) < 20 || c.shape != 1 || c.looser > 1 || c.gpus < 8):
		return false
	}
	return c.bound >= float64(len(c.set.profiles))
}

// rarest is how many requests the rarest model gets where every model counts: with a percent of bad ones that is 30.
const rarest = 3000

// requests is how many requests a run simulates, at least: bursts come in tens, so that it takes more of them. With a percent of bad ones that
// is hundreds.
func (c column) requests() float64 {
	n := 25000.0
	switch c.shape {
	case .3:
		n = 35000
	case .05:
		n = 50000
	}
	if c.each {
		n = max(n, rarest/slices.Min(workload.Zipf(len(c.set.profiles), c.zipf, 1)))
	}
	return n
}

func (b *bench) columns() ([]column, error) {
	all, err := sets()
	if err != nil {
		return nil, err
	}
	var columns []column
	for _, s := range all {
		for _, gpus := range []int{2, 4, 8, 16, 64} {
			for _, looser := range []float64{1, 2} {
				for _, shape := range []float64{1, .3, .05} {
					for _, zipf := range []float64{0, .9} {
						c := column{set: s, gpus: gpus, shape: shape, zipf: zipf, looser: looser}
						c.bound = bound.Gather(c.bounds(), gpus)
						for _, c.each = range []bool{false, true} {
							if c.says() && strings.Contains("compare."+c.name(), b.only) {
								columns = append(columns, c)
							}
						}
					}
				}
			}
		}
	}
	if len(columns) == 0 {
		return nil, errors.New("compare: no load has " + b.only + " in its name")
	}
	return columns, nil
}

func (c column) bounds() (all []bound.Model) {
	shares := workload.Zipf(len(c.set.profiles), c.zipf, 1)
	for i, p := range c.set.profiles {
		all = append(all, bound.Model{Latency: func(n int) float64 { return p.Latency(n).Seconds() }, SLO: p.SLO.Seconds() * c.looser, MaxBatch: 64, Share: shares[i]})
	}
	return all
}

func (c column) scenario(rule scenario.Dispatch) *scenario.Scenario {
	var models []scenario.Model
	for i, p := range c.set.profiles {
		models = append(models, scenario.Model{
			Name: fmt.Sprintf("m%d", i), Profile: &scenario.Profile{Alpha: scenario.Duration(p.Alpha), Beta: scenario.Duration(p.Beta)},
			SLO: scenario.Duration(float64(p.SLO) * c.looser), Late: "drop", Arrivals: &scenario.Arrivals{Shape: c.shape},
		})
	}
	s := world(c.gpus, 1, rule, models...)
	if c.zipf > 0 {
		s.Zipf = &c.zipf
	}
	return s
}

// contender is the part of the best goodput of a load, in a short search, from which on a discipline is searched at length.
const contender = .91

// compared are the rules of the matrix: the disciplines, adaptive first, each under its own drop policy, and deferred and eager under the others too.
func compared() (all []scenario.Dispatch) {
	for _, d := range discipline.Names() {
		all = append(all, rule(d, "", nil))
	}
	for _, d := range []string{"deferred", "eager"} {
		for _, drop := range dropPolicies() {
			if drop != "window" { // their own
				all = append(all, rule(d, drop, nil))
			}
		}
	}
	return all
}

// ruleName is a rule's in the name of a figure: its discipline, and its drop policy unless that is the discipline's own.
func ruleName(r scenario.Dispatch) string {
	return strings.TrimSuffix(strings.ReplaceAll(r.Discipline, "-", "_")+"_"+r.DropPolicy, "_")
}

// matrix searches for the goodput of every rule under every load of the matrix: first shortly, and then, where
// it is near the best, and for the first in any case, with ten times the requests and three seeds. Where these do not tell whether the first is
// behind, there are more (see settle).
func (b *bench) matrix(ctx context.Context, r *figure.Report) error {
	columns, err := b.columns()
	if err != nil {
		return err
	}
	rules := compared()
	var cells, again []*cell
	for _, c := range columns {
		for _, d := range rules {
			cells = append(cells, &cell{
				name: "compare." + c.name() + "." + ruleName(d) + ".goodput", scenario: c.scenario(d),
				guess: .7 * c.bound, overall: !c.each, requests: b.simulated(c.requests() / 10), tolerance: .04,
			})
		}
	}
	began := time.Now()
	if err := b.search(ctx, cells, 1); err != nil {
		return err
	}
	lines := slices.Collect(slices.Chunk(cells, len(rules)))
	part, longer := contender, 0
	for {
		again = again[:0]
		for i, line := range lines {
			best := highest(line)
			for k, candidate := range line {
				if candidate.requests == b.simulated(columns[i].requests()) || k > 0 && candidate.found.Rate < part*best {
					continue
				}
				candidate.guess, candidate.requests, candidate.tolerance = max(candidate.found.Rate, .01*best), b.simulated(columns[i].requests()), .002
				candidate.step = 1.04
				again = append(again, candidate)
			}
		}
		if len(again) == 0 {
			break
		}
		if err := b.search(ctx, again, b.roundsOr(3)); err != nil {
			return err
		}
		longer += len(again)
		// What a short search finds may be too high. Where that would be the best, it has to stand at length.
		part = 1
	}
	if b.rounds == 0 {
		if err := b.settle(ctx, lines); err != nil {
			return err
		}
	}
	b.say(fmt.Sprintf("%d searches, %d of them again and longer, in %.0f s", len(cells), longer, time.Since(began).Seconds()))
	w := tabwriter.NewWriter(b.out, 0, 4, 2, ' ', 0)
	fmt.Fprint(w, "load\tbound")
	for _, d := range rules {
		fmt.Fprint(w, "\t", ruleName(d))
	}
	fmt.Fprintln(w)
	for i, c := range columns {
		best := highest(lines[i])
		fmt.Fprintf(w, "%s\t%s", c.name(), figure.Number(c.bound))
		for _, candidate := range lines[i] {
			fmt.Fprintf(w, "\t%s %s", shade(held(candidate), best), figure.Number(held(candidate)))
			r.AddMean(candidate.name, rates(candidate.found), "req/s", "gather bound "+figure.Number(c.bound))
		}
		fmt.Fprintln(w)
	}
	r.Emulated = "everything: simulated time, no delays, every model on every GPU; at most 1% bad of all requests together, or, in rows that end in `each`, of the worst model's"
	summarize(columns, lines, r)
	return errors.Join(w.Flush())
}

// highest is the best goodput of a line.
func highest(line []*cell) (best float64) {
	for _, candidate := range line {
		best = max(best, held(candidate))
	}
	return best
}

// summarize counts the loads where the first discipline holds nearly what the best of the others holds, and names those where it does not.
func summarize(columns []column, lines [][]*cell, r *figure.Report) {
	var behind []string
	surely := 0
	for i, c := range columns {
		if d := closest(lines[i]); d.ratio < near {
			behind = append(behind, c.name()+" "+d.String())
			if d.behind() {
				surely++
			}
		}
	}
	n := len(columns)
	r.AddRuns("compare.adaptive_best", []float64{float64(n-len(behind)) / float64(n)}, "ratio",
		fmt.Sprintf("%d of %d loads where adaptive holds at least .995 of the best of the others; not: %s", n-len(behind), n, cmp.Or(strings.Join(behind, ", "), "none")))
	r.AddRuns("compare.adaptive_not_behind", []float64{float64(n-surely) / float64(n)}, "ratio",
		fmt.Sprintf("%d of %d loads where it is not surely below that: the 95%% interval over the seeds reaches .995", n-surely, n))
}

// shade is how near to the best of its line a goodput is.
func shade(v, best float64) string {
	switch {
	case best == 0 || v < .5*best:
		return "    "
	case v < .8*best:
		return "░░░░"
	case v < .95*best:
		return "▒▒▒▒"
	case v < .99*best:
		return "▓▓▓▓"
	}
	return "████"
}
