// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/figure"
)

// lineup is what of placements there are figures of: scenarios and policies, in their order.
func (f byName) lineup() (scenarios, policies []string) {
	all, err := arenas()
	if err != nil {
		return nil, nil // there are no figures of scenarios that cannot be made
	}
	for _, a := range all {
		if _, ok := f["placements."+a.name+"."+ours+".held"]; ok {
			scenarios = append(scenarios, a.name)
		}
	}
	for _, p := range placements() {
		policies = append(policies, p.name)
	}
	return scenarios, policies
}

func (f byName) placed(scenario, policy, what string) (float64, bool) {
	v, ok := f["placements."+scenario+"."+policy+"."+what]
	return v.Value, ok
}

// heat draws a value of all policies as a part of the best of its scenario: a block of shades, darker where nearer.
func (f byName) heat(what string) string {
	scenarios, policies := f.lineup()
	var b strings.Builder
	b.WriteString("```\n")
	fmt.Fprintf(&b, "%-14s %8s", "", "best")
	for _, p := range policies {
		fmt.Fprintf(&b, " %9s", strings.TrimPrefix(p, "gpulet_"))
	}
	b.WriteString("\n")
	for _, s := range scenarios {
		best := 0.0
		for _, p := range policies {
			v, _ := f.placed(s, p, what)
			best = max(best, v)
		}
		fmt.Fprintf(&b, "%-14s %8.0f", s, best)
		for _, p := range policies {
			v, ok := f.placed(s, p, what)
			if !ok {
				fmt.Fprintf(&b, " %9s", "–")
				continue
			}
			fmt.Fprintf(&b, " %s %.2f", shade(v, best), v/best)
		}
		b.WriteString("\n")
	}
	b.WriteString("```\n")
	return b.String()
}

func heldTable(f byName) string    { return f.heat("held") }
func pastTable(f byName) string    { return f.heat("goodput") }
func elasticTable(f byName) string { return f.bills() }

// bills are GPUs and cost on elastic clusters. What does not hold the load is in brackets.
func (f byName) bills() string {
	scenarios, policies := f.lineup()
	var rows [][]string
	for _, s := range scenarios {
		cells := []string{"`" + s + "`"}
		for _, p := range policies {
			fewest, chosen := "–", "–"
			if v, ok := f.placed(s, p, "gpus"); ok {
				fewest = fmt.Sprintf("%.0f", v)
			}
			if v, ok := f.placed(s, p, "chosen_gpus"); ok {
				cost, _ := f.placed(s, p, "cost")
				bad, _ := f.placed(s, p, "cost_bad")
				if chosen = fmt.Sprintf("%.3g, %.3g $", v, cost); bad > 100*holds {
					chosen = "(" + chosen + ")"
				}
			}
			cells = append(cells, fewest+"; "+chosen)
		}
		rows = append(rows, cells)
	}
	return write(append([]string{"fewest GPUs; GPUs by its own choice, $/h"}, policies...), rows)
}

// changeTable says what changes of plans cost where rates change.
func changeTable(f byName) string {
	scenarios, policies := f.lineup()
	var changing []string
	head := []string{"per change of plan: loads; seconds of loading; partitions ended or replaced"}
	for _, s := range scenarios {
		if _, ok := f.placed(s, simplest, "loads"); ok {
			changing = append(changing, s)
			head = append(head, "`"+s+"`")
		}
	}
	var rows [][]string
	for _, p := range policies {
		cells := []string{p}
		for _, s := range changing {
			cell := "–"
			if loads, ok := f.placed(s, p, "loads"); ok {
				loading, _ := f.placed(s, p, "load_seconds")
				stops, _ := f.placed(s, p, "stops")
				cell = fmt.Sprintf("%.1f; %.1f; %.1f", loads, loading, stops)
			}
			cells = append(cells, cell)
		}
		rows = append(rows, cells)
	}
	return write(head, rows)
}

// foreseenTable says how far what policies and the host foresee is from what became of it: the median over scenarios, and the extremes.
func foreseenTable(f byName) string {
	scenarios, policies := f.lineup()
	var rows [][]string
	for _, p := range policies {
		cells := []string{p}
		for _, pair := range [][2]string{{"simulated_goodput", "promised_goodput"}, {"simulated_goodput", "foreseen_goodput"}, {"simulated_p99", "foreseen_p99"}} {
			var all []float64
			for _, s := range scenarios {
				if s == "azure" || s == "azure_bursty" {
					continue // the load of the minutes that judge is another
				}
				v, ok := f.placed(s, p, pair[0])
				if of, known := f.placed(s, p, pair[1]); ok && known && of > 0 {
					all = append(all, v/of)
				}
			}
			if len(all) == 0 {
				cells = append(cells, "–")
				continue
			}
			slices.Sort(all)
			cells = append(cells, fmt.Sprintf("%.2f (%.2f to %.2f)", median(all), all[0], all[len(all)-1]))
		}
		rows = append(rows, cells)
	}
	return write([]string{"simulated over", "goodput that the plan promises", "goodput foreseen by evaluation", "99th percentile foreseen by evaluation"}, rows)
}

// simplest is the policy that all others have to beat: every model wherever it fits.
const simplest = "static"

// lossTable says of every policy where it is furthest behind, and in how many scenarios it holds less than the simplest does.
func lossTable(f byName) string {
	scenarios, policies := f.lineup()
	var rows [][]string
	for _, p := range policies {
		var behind []string
		worst, where, by := math.Inf(1), "", ""
		for _, s := range scenarios {
			v, _ := f.placed(s, p, "held")
			if plain, _ := f.placed(s, simplest, "held"); v < .995*plain {
				behind = append(behind, s)
			}
			most, who := 0.0, ""
			for _, o := range policies {
				if of, _ := f.placed(s, o, "held"); of > most {
					most, who = of, o
				}
			}
			if most > 0 && v/most < worst {
				worst, where, by = v/most, s, who
			}
		}
		rows = append(rows, []string{p, fmt.Sprintf("`%s`: %.2f of %s", where, worst, by), fmt.Sprintf("%d of %d", len(behind), len(scenarios)), strings.Join(behind, ", ")})
	}
	return write([]string{"policy", "furthest behind", "holds less than " + simplest + " in", "namely"}, rows)
}

// gainTable is ours over the best of the others.
func gainTable(f byName) string {
	scenarios, _ := f.lineup()
	var rows [][]string
	for _, s := range scenarios {
		cells := []string{"`" + s + "`"}
		for _, what := range []string{"held", "goodput", "gpus", "cost"} {
			v, ok := f["placements."+s+".over_best."+what]
			if !ok {
				cells = append(cells, "–")
				continue
			}
			cells = append(cells, fmt.Sprintf("%.2f of %s", v.Value, strings.TrimPrefix(v.Note, bestNote)))
		}
		rows = append(rows, cells)
	}
	return write([]string{"conch over the best of the others", "load held", "goodput past it", "fewest GPUs", "cost"}, rows)
}

// publishedTable sets what papers print of placement beside what comes out here.
func publishedTable(f byName) string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if !strings.HasPrefix(name, "placement.") {
			continue
		}
		v := f[name]
		note, rest, _ := strings.Cut("; "+v.Note, "; paper ")
		paper, ratio, _ := strings.Cut(rest, "; ratio ")
		rows = append(rows, []string{"`" + name + "`", figure.Number(v.Value) + " " + v.Unit, paper, ratio, strings.TrimPrefix(note, "; ")})
	}
	return write([]string{"figure", "ours", "paper", "ratio", ""}, rows)
}
