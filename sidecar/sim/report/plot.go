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
	chartWidth, chartHeight  = 480.0, 240.0
	left, right, upper, foot = 58.0, 16.0, 14.0, 46.0
)

// chart is a drawing under its caption.
type chart struct {
	Title, Note string
	Large       bool
	SVG         template.HTML
}

// series is one line of a chart; x grows. A y that is no number leaves a gap.
type series struct {
	name       string
	side       int // colour and dashes
	dots, thin bool
	x, y       []float64
}

// some reports whether there is anything to draw.
func some(all []series) bool {
	for _, s := range all {
		for _, y := range s.y {
			if !math.IsNaN(y) {
				return true
			}
		}
	}
	return false
}

// axis is how values of y lie along it.
type axis int

const (
	linear axis = iota
	// shares of 0 to 1 lie by their logarithm above a thousandth, so that 1% and 100% can be read off one chart.
	shares
)

// plot is what is drawn.
type plot struct {
	title, note, xUnit string
	// whole says that x counts things.
	whole, large bool
	y            axis
	// level is a line across at a value of y, at one upwards at a value of x; 0 is none.
	level, at         float64
	levelName, atName string
	all               []series
}

// least share that is drawn apart from none.
const leastShare = 1e-3

// draw makes the drawing. Sides differ in colour and in dashes, for readers who do not see the colours.
func (p *plot) draw() chart {
	maxX, maxY := p.at, 1.25*p.level
	for _, s := range p.all {
		for i := range s.x {
			maxX = math.Max(maxX, s.x[i])
			if !math.IsNaN(s.y[i]) {
				maxY = math.Max(maxY, s.y[i])
			}
		}
	}
	xStep := step(maxX)
	if p.whole {
		xStep = math.Max(1, math.Ceil(xStep))
	}
	maxX = math.Max(maxX, xStep)
	if next := math.Ceil(maxX/xStep) * xStep; next < 1.05*maxX {
		maxX = next
	}
	px := func(x float64) float64 { return left + x/maxX*(chartWidth-left-right) }
	height := chartHeight - upper - foot
	var ticks []float64
	py := func(y float64) float64 { return chartHeight - foot - y/maxY*height }
	label := short
	if p.y == shares {
		ticks = []float64{0, .001, .01, .1, 1}
		full := math.Log10(1 + 1/leastShare)
		py = func(y float64) float64 { return chartHeight - foot - math.Log10(1+y/leastShare)/full*height }
		label = func(y float64) string { return fmt.Sprintf("%.4g%%", 100*y) }
	} else {
		yStep := step(maxY)
		maxY = math.Max(math.Ceil(maxY/yStep-1e-9)*yStep, yStep)
		for i := 0; float64(i)*yStep <= maxY*(1+1e-9); i++ {
			ticks = append(ticks, float64(i)*yStep)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><title>%s</title>`, chartWidth, chartHeight, html.EscapeString(p.title), html.EscapeString(p.title))
	for _, y := range ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`,
			left, chartWidth-right, py(y), py(y), left-5, py(y)+4, label(y))
	}
	for i := 0; float64(i)*xStep <= maxX*(1+1e-9); i++ {
		x := float64(i) * xStep
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, px(x), chartHeight-foot+18, short(x))
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`, (chartWidth-right+left)/2, chartHeight-6, html.EscapeString(p.xUnit))
	if p.level > 0 {
		fmt.Fprintf(&b, `<line class="level" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="level" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			left, chartWidth-right, py(p.level), py(p.level), chartWidth-right-2, py(p.level)-4, html.EscapeString(p.levelName))
	}
	if p.at > 0 {
		fmt.Fprintf(&b, `<line class="level" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text class="level" x="%.1f" y="%g">%s</text>`,
			px(p.at), px(p.at), upper, chartHeight-foot, px(p.at)+4, chartHeight-foot-5, html.EscapeString(p.atName))
	}
	for _, s := range p.all {
		s.draw(&b, px, py)
	}
	b.WriteString("</svg>")
	return chart{p.title, p.note, p.large, template.HTML(b.String())} //nolint:gosec // every text above is escaped
}

func (s series) draw(b *strings.Builder, px, py func(float64) float64) {
	class := fmt.Sprintf("side r%d", s.side%colours)
	if s.thin {
		class += " thin"
	}
	var points []string
	end := func() {
		if len(points) > 0 {
			fmt.Fprintf(b, `<polyline class="%s" points="%s"><title>%s</title></polyline>`, class, strings.Join(points, " "), html.EscapeString(s.name))
		}
		points = nil
	}
	for i := range s.x {
		if math.IsNaN(s.y[i]) {
			end()
			continue
		}
		points = append(points, fmt.Sprintf("%.1f,%.1f", px(s.x[i]), py(s.y[i])))
	}
	end()
	if !s.dots {
		return
	}
	for i := range s.x {
		if !math.IsNaN(s.y[i]) {
			fmt.Fprintf(b, `<circle class="f%d" cx="%.1f" cy="%.1f" r="2.4"><title>%s: %s req/s, %s bad</title></circle>`,
				s.side%colours, px(s.x[i]), py(s.y[i]), html.EscapeString(s.name), Rate(s.x[i]), percent(s.y[i]))
		}
	}
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
	case v >= 1e3:
		return fmt.Sprintf("%.4gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}

func unknownIfZero(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

// history is a line over time; the value is given the width of an interval in seconds.
func history(name string, side int, h []sim.Interval, value func(sim.Interval, float64) float64) series {
	s := series{name: name, side: side}
	width := h[1].FromSeconds - h[0].FromSeconds
	for _, interval := range h {
		s.x, s.y = append(s.x, interval.FromSeconds+width/2), append(s.y, value(interval, width))
	}
	return s
}

// batches is the share of executions by their rows, over all models, in percent.
func batches(sides []Side) (all []series) {
	for i, side := range sides {
		if side.Result == nil {
			continue
		}
		var counts []float64
		sum := 0.0
		for _, m := range side.Result.Models {
			for b, n := range m.Batches {
				for len(counts) <= b {
					counts = append(counts, 0)
				}
				counts[b] += float64(n)
				sum += float64(n)
			}
		}
		s := series{name: side.Name, side: i}
		for len(counts) > 3 && counts[len(counts)-1] == 0 {
			counts = counts[:len(counts)-1]
		}
		for b := 1; b < len(counts) && sum > 0; b++ {
			s.x, s.y = append(s.x, float64(b)), append(s.y, 100*counts[b]/sum)
		}
		all = append(all, s)
	}
	return all
}
