// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"

	"github.com/conch-serving/conch/sidecar/sim"
)

// Size of a chart in its own units, and the margins of its plot.
const (
	chartWidth, chartHeight = 480.0, 220.0
	left, right, top, foot  = 56.0, 14.0, 10.0, 42.0
)

// series is one line of a chart; x grows.
type series struct {
	name string
	run  int // colour and dashes
	x, y []float64
}

// lines draws series over each other. Runs differ in colour and in dashes, for readers who do not see the colours. The title names the unit of
// y. Whole says that x counts things.
func lines(title, xUnit string, whole bool, all []series) chart {
	var maxX, maxY float64
	for _, s := range all {
		for i := range s.x {
			maxX, maxY = math.Max(maxX, s.x[i]), math.Max(maxY, s.y[i])
		}
	}
	xStep, yStep := step(maxX), step(maxY)
	if whole {
		xStep = math.Max(1, math.Ceil(xStep))
	}
	// Upwards there is room to the next line of the grid; to the right only if that is near.
	maxX = math.Max(maxX, xStep)
	if next := math.Ceil(maxX/xStep) * xStep; next < 1.05*maxX {
		maxX = next
	}
	maxY = math.Ceil(maxY/yStep-1e-9) * yStep
	maxY = math.Max(maxY, yStep)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><title>%s</title>`, chartWidth, chartHeight, html.EscapeString(title), html.EscapeString(title))
	px := func(x float64) float64 { return left + x/maxX*(chartWidth-left-right) }
	py := func(y float64) float64 { return chartHeight - foot - y/maxY*(chartHeight-top-foot) }
	for i := 0; float64(i)*yStep <= maxY*(1+1e-9); i++ {
		y := float64(i) * yStep
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`,
			left, chartWidth-right, py(y), py(y), left-6, py(y)+4, short(y))
	}
	for i := 0; float64(i)*xStep <= maxX*(1+1e-9); i++ {
		x := float64(i) * xStep
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, px(x), chartHeight-foot+17, short(x))
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`, (chartWidth-right+left)/2, chartHeight-5, html.EscapeString(xUnit))
	for _, s := range all {
		points := make([]string, len(s.x))
		for i := range s.x {
			points[i] = fmt.Sprintf("%.1f,%.1f", px(s.x[i]), py(s.y[i]))
		}
		fmt.Fprintf(&b, `<polyline class="run r%d" points="%s"><title>%s</title></polyline>`, s.run%8, strings.Join(points, " "), html.EscapeString(s.name))
	}
	b.WriteString("</svg>")
	return chart{title, template.HTML(b.String())} //nolint:gosec // every text above is escaped
}

// step is a distance of 1, 2 or 5 times a power of ten of which three to five or so make up v.
func step(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v/4)))
	for _, f := range []float64{1, 2, 5} {
		if v/4 <= f*p*(1+1e-9) {
			return f * p
		}
	}
	return 10 * p
}

// short is a number that fits beside an axis.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.4gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}

func history(runs []Run, value func(sim.Interval, float64) float64) (all []series) {
	for i, run := range runs {
		if run.Result == nil {
			continue
		}
		s := series{name: run.Name, run: i}
		h := run.Result.History
		for k, interval := range h {
			width := 1.0
			if len(h) > 1 {
				width = h[min(1, len(h)-1)].FromSeconds - h[0].FromSeconds
			}
			s.x, s.y = append(s.x, h[k].FromSeconds+width/2), append(s.y, value(interval, width))
		}
		all = append(all, s)
	}
	return all
}

// batches is the share of executions by their rows, over all models.
func batches(runs []Run) (all []series) {
	for i, run := range runs {
		if run.Result == nil {
			continue
		}
		var counts []float64
		sum := 0.0
		for _, m := range run.Result.Models {
			for b, n := range m.Batches {
				for len(counts) <= b {
					counts = append(counts, 0)
				}
				counts[b] += float64(n)
				sum += float64(n)
			}
		}
		s := series{name: run.Name, run: i}
		for b := 1; b < len(counts); b++ {
			s.x, s.y = append(s.x, float64(b)), append(s.y, 100*counts[b]/math.Max(1, sum))
		}
		all = append(all, s)
	}
	return all
}
