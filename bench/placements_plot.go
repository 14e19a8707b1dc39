// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/conch-serving/conch/internal/figure"
)

// plotName is the file beside the results that has the plot of policies and scenarios.
const plotName = "placements.svg"

// Sizes of the plot, in pixels.
const (
	plotLeft, plotTop      = 110, 78
	plotWidth, plotHeight  = 46, 20
	plotBetween, plotBelow = 60, 34
)

// drawPlacements writes the plot of a directory's results, where there are any of placements.
func drawPlacements(results string, reports []*figure.Report) error {
	f := byNameOf(reports)
	if scenarios, _ := f.lineup(); len(scenarios) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(results, plotName), []byte(f.plot()), 0o644) //nolint:gosec // for everybody to read
}

// panel is a heat map of the plot: a value for every scenario and policy as a part of the best of its scenario.
type panel struct {
	title, legend string
	// value of a cell, whether it is known, and whether it counts as a success.
	value func(scenario, policy string) (v float64, known, held bool)
	// cheaper: less is better.
	cheaper bool
	text    func(v, best float64) string
}

// plot draws policies and scenarios: the load held on fixed GPUs, what elastic GPUs cost, and how many loads a change of plan causes.
func (f byName) plot() string {
	scenarios, policies := f.lineup()
	part := func(v, best float64) string { return fmt.Sprintf("%.2f", v/best) }
	panels := []panel{
		{
			title: "fixed GPUs: load held", legend: "as a part of what the best policy holds",
			value: func(s, p string) (float64, bool, bool) {
				v, known := f.placed(s, p, "held")
				return v, known, true
			}, text: part,
		},
		{
			title: "elastic GPUs: cost", legend: "over that of the cheapest that holds the load; struck out: it is not held",
			value: func(s, p string) (float64, bool, bool) {
				v, known := f.placed(s, p, "cost")
				bad, _ := f.placed(s, p, "cost_bad")
				return v, known, bad <= 100*holds
			}, cheaper: true, text: part,
		},
		{
			title: "changing rates: loads per change of plan", legend: "models loaded somewhere; fewer disturb less",
			value: func(s, p string) (float64, bool, bool) {
				v, known := f.placed(s, p, "loads")
				return v, known, true
			}, cheaper: true, text: func(v, _ float64) string { return fmt.Sprintf("%.3g", v) },
		},
	}
	var b strings.Builder
	y := plotTop
	body := func(p panel) {
		fmt.Fprintf(&b, `<text x="8" y="%d" font-weight="bold">%s</text><text x="8" y="%d" fill="#555">%s</text>`+"\n", y-plotTop+24, html.EscapeString(p.title), y-plotTop+40, html.EscapeString(p.legend))
		for i, name := range policies {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" font-size="8">%s</text>`+"\n", plotLeft+i*plotWidth+plotWidth/2, y-8-9*(i%2), html.EscapeString(strings.TrimPrefix(name, "gpulet_")))
		}
		for _, s := range scenarios {
			if f.row(&b, p, s, policies, y) {
				y += plotHeight
			}
		}
		y += plotBetween + plotBelow
	}
	for _, p := range panels {
		body(p)
	}
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="10">`+"\n"+`<title>Placement policies compared, simulated</title>`+"\n"+`<rect width="100%%" height="100%%" fill="white"/>`+"\n",
		plotLeft+len(policies)*plotWidth+10, y-plotTop-plotBelow)
	return head + b.String() + "</svg>\n"
}

// row draws a scenario of a panel; false where nothing of it is known.
func (f byName) row(b *strings.Builder, p panel, scenario string, policies []string, y int) bool {
	best, measured := 0.0, false
	for _, name := range policies {
		v, known, held := p.value(scenario, name)
		measured = measured || known
		if known && held && (best == 0 || p.cheaper && v < best || !p.cheaper && v > best) {
			best = v
		}
	}
	if !measured {
		return false
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotLeft-6, y+14, html.EscapeString(scenario))
	for i, name := range policies {
		x := plotLeft + i*plotWidth
		v, known, held := p.value(scenario, name)
		if !known {
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#f4f4f4"/>`+"\n", x, y, plotWidth-2, plotHeight-2)
			continue
		}
		good := 1.0 // from 0 to 1, the best
		switch {
		case p.cheaper && v > 0:
			good = min(1, best/v)
		case !p.cheaper && best > 0:
			good = v / best
		}
		colour, ink := tint(good, held)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/><text x="%d" y="%d" text-anchor="middle" fill="%s"%s>%s</text>`+"\n",
			x, y, plotWidth-2, plotHeight-2, colour, x+plotWidth/2-1, y+13, ink, map[bool]string{false: ` text-decoration="line-through"`}[held], p.text(v, max(best, math.SmallestNonzeroFloat64)))
	}
	return true
}

// tint is the colour of a cell and of its text: from white to blue the better it is, grey where the load is not held.
func tint(good float64, held bool) (fill, ink string) {
	if !held {
		return "#e0e0e0", "#888"
	}
	dark := good * good // what is near the best differs visibly
	mix := func(from, to float64) int { return int(math.Round(from + (to-from)*dark)) }
	fill = fmt.Sprintf("#%02x%02x%02x", mix(247, 33), mix(251, 102), mix(255, 172))
	if dark > .5 {
		return fill, "#fff"
	}
	return fill, "#222"
}
