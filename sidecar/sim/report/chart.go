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
	chartWidth, chartHeight = 480.0, 240.0
	left, right, top, foot  = 52.0, 10.0, 10.0, 40.0
)

// series is one line of a chart; x grows.
type series struct {
	name string
	run  int // colour and dashes
	x, y []float64
}

// lines draws series over each other. Runs differ in colour and in dashes, so that nobody needs to tell colours apart.
func lines(title, xUnit, yUnit string, all []series) chart {
	var maxX, maxY float64
	for _, s := range all {
		for i := range s.x {
			maxX, maxY = math.Max(maxX, s.x[i]), math.Max(maxY, s.y[i])
		}
	}
	maxX, maxY = nice(maxX), nice(maxY)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><title>%s</title>`, chartWidth, chartHeight, html.EscapeString(title), html.EscapeString(title))
	px := func(x float64) float64 { return left + x/maxX*(chartWidth-left-right) }
	py := func(y float64) float64 { return chartHeight - foot - y/maxY*(chartHeight-top-foot) }
	for i := range 5 {
		f := float64(i) / 4
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">%.4g</text><text x="%.1f" y="%g" text-anchor="middle">%.4g</text>`,
			left, chartWidth-right, py(f*maxY), py(f*maxY), left-5, py(f*maxY)+4, f*maxY, px(f*maxX), chartHeight-foot+16, f*maxX)
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text><text transform="translate(12 %g) rotate(-90)" text-anchor="middle">%s</text>`,
		(chartWidth+left)/2, chartHeight-6, html.EscapeString(xUnit), (chartHeight-foot)/2, html.EscapeString(yUnit))
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

// nice is the next number of the form 1, 2, 4 or 8 times a power of ten.
func nice(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 4, 8} {
		if v <= f*p {
			return f * p
		}
	}
	return 10 * p
}

func history(runs []Run, value func(sim.Interval, float64) float64) (all []series) {
	for i, run := range runs {
		if run.Result == nil {
			continue
		}
		s := series{name: run.Name, run: i}
		h := run.Result.History
		for k, one := range h {
			width := 1.0
			if len(h) > 1 {
				width = h[min(1, len(h)-1)].FromSeconds - h[0].FromSeconds
			}
			s.x, s.y = append(s.x, h[k].FromSeconds), append(s.y, value(one, width))
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
