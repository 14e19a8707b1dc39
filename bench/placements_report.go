// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/conch-serving/conch/internal/figure"
)

// report adds the figures of a contest.
func (c *contest) report(r *figure.Report) {
	add := func(what string, v float64, unit, note string) {
		r.Add("placements."+c.arena.name+"."+c.name+"."+what, v, unit, note)
	}
	add("held", c.load(), "req/s", "highest load with at most 1% bad of all requests")
	if c.over.refused == "" {
		add("goodput", c.over.simulated.GetGoodput(), "req/s", "at 1.3 times what the best policy holds")
	}
	if c.below.refused == "" {
		add("foreseen_goodput", c.below.foreseen.GetGoodput(), "req/s", "at .8 of what the best policy holds, by the arrivals that the policy could see")
		add("simulated_goodput", c.below.simulated.GetGoodput(), "req/s", "there, by others")
		if c.below.promised > 0 {
			add("promised_goodput", c.below.promised, "req/s", "there, by what the plan itself counts on")
		}
		add("foreseen_p99", slowest(c.belowOf, c.below.foreseen), "ratio", "99th percentile over the SLO, of the model where that is largest")
		add("simulated_p99", slowest(c.belowOf, c.below.simulated), "ratio", "there, by others")
	}
	if !c.arena.mixed && c.fewest <= 2*c.total() {
		add("gpus", float64(c.fewest), "GPUs", "fewest on which its plan holds .9 of what the best policy holds on the fixed ones")
	}
	if c.elastic.refused == "" {
		add("chosen_gpus", c.elastic.gpus, "GPUs", "for that load, by its own choice under min-cost, of twice as many")
		add("cost", c.elastic.cost, "$/h", "of those")
		add("cost_bad", 100*c.elastic.bad, "%", "bad with those; above 1 the load is not held")
		if c.elastic.changes > 0 {
			add("loads", c.elastic.loads, "loads", fmt.Sprintf("models that a change of plan loads somewhere, under min-cost; mean of %d changes", c.elastic.changes))
			add("load_seconds", c.elastic.loading, "s", "that these take one after the other")
			add("stops", c.elastic.stops, "partitions", "that a change of plan ends or replaces")
		}
	}
}

// cost per hour where the load is held, else none.
func (c *contest) cost() (float64, bool) {
	return c.elastic.cost, c.elastic.holds()
}

// bestNote is followed by the name of a policy.
const bestNote = "the best of the others is "

// placementSummary compares ours with the best of the others, arena by arena.
func placementSummary(lines [][]*contest, r *figure.Report) {
	type count struct{ least, better, of int }
	counts := map[string]*count{"held": {}, "goodput": {}, "gpus": {}, "cost": {}}
	ratio := func(arena, what string, v float64, by string) {
		r.Add("placements."+arena+".over_best."+what, v, "ratio", bestNote+by)
		n := counts[what]
		n.of++
		if v >= .995 {
			n.least++
		}
		if v > 1.005 {
			n.better++
		}
	}
	for _, line := range lines {
		name := line[0].arena.name
		us := ourContest(line)
		if o := bestOf(line, (*contest).load); o.load() > 0 {
			ratio(name, "held", us.load()/o.load(), o.name)
		}
		if o := bestOf(line, func(c *contest) float64 { return c.over.simulated.GetGoodput() }); us.over.refused == "" {
			ratio(name, "goodput", us.over.simulated.GetGoodput()/o.over.simulated.GetGoodput(), o.name)
		}
		if !us.arena.mixed {
			o := bestOf(line, func(c *contest) float64 { return -float64(c.fewest) })
			ratio(name, "gpus", float64(o.fewest)/float64(us.fewest), o.name)
		}
		cheapness := func(c *contest) float64 {
			if cost, ok := c.cost(); ok {
				return 1 / cost
			}
			return 0
		}
		if o := bestOf(line, cheapness); cheapness(o) > 0 {
			ratio(name, "cost", cheapness(us)/cheapness(o), o.name)
		}
	}
	for _, what := range []string{"held", "goodput", "gpus", "cost"} {
		n := counts[what]
		r.Add("placements.at_least_best."+what, float64(n.least), "scenarios", fmt.Sprintf("of %d, where conch reaches .995 of the best of the others", n.of))
		r.Add("placements.above_best."+what, float64(n.better), "scenarios", fmt.Sprintf("of %d, where conch is above 1.005 times the best of the others", n.of))
	}
}

// placementText prints what was found.
func placementText(out io.Writer, lines [][]*contest) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	for _, line := range lines {
		fmt.Fprintf(w, "%s\tholds\tpast it\tpromised\tforeseen\tsimulated\tp99 foreseen\tsimulated\tGPUs\tchosen\t$/h\tbad\tloads\t\n", line[0].arena.name)
		for _, c := range line {
			if c.below.refused != "" {
				fmt.Fprintf(w, "%s\t%.0f\trefused\t\n", c.name, c.load())
				continue
			}
			loads := "–"
			if c.elastic.changes > 0 {
				loads = fmt.Sprintf("%.1f", c.elastic.loads)
			}
			fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%d\t%.4g\t%.2f\t%.2f%%\t%s\t\n", c.name, c.load(), c.over.simulated.GetGoodput(), c.below.promised,
				c.below.foreseen.GetGoodput(), c.below.simulated.GetGoodput(), slowest(c.belowOf, c.below.foreseen), slowest(c.belowOf, c.below.simulated),
				c.fewest, c.elastic.gpus, c.elastic.cost, 100*c.elastic.bad, loads)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
