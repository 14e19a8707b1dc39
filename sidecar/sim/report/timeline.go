// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"slices"
	"strings"

	"github.com/conch-serving/conch/sidecar/sim"
)

// A timeline's drawing: its size in its own units, and how many batches it has at the most.
const (
	timelineWidth, timelineLeft, laneHeight, timelineTop = 1120.0, 110.0, 20.0, 22.0
	mostBatches                                          = 1500
)

// timeline is the batches of a side, a lane for each partition.
type timeline struct {
	Name string
	// Drawn batches, and how many more there are in the window.
	Drawn, More int
	// From and To are the first start and the last end that are drawn, in seconds.
	From, To float64
	SVG      template.HTML
}

func timelineOf(side Side) timeline {
	r := side.Result
	lane, names := lanes(r)
	order := make([]int, len(r.Timeline))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(r.Timeline[a].Start, r.Timeline[b].Start) })
	t := timeline{Name: side.Name, Drawn: min(len(order), mostBatches)}
	t.More = len(order) - t.Drawn
	order = order[:t.Drawn]
	from, to := r.Timeline[order[0]].Start, 0.0
	for _, k := range order {
		to = max(to, r.Timeline[k].End)
	}
	to = max(to, from+1)
	t.From, t.To = from/1e6, to/1e6
	height := timelineTop + laneHeight*float64(len(names)) + 4
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><title>%s</title>`, timelineWidth, height,
		html.EscapeString("Batches of "+side.Name+" per partition over time"), html.EscapeString("Batches of "+side.Name))
	x := func(us float64) float64 { return timelineLeft + (us-from)/(to-from)*(timelineWidth-timelineLeft-8) }
	// Times count from the first start: the window says when that is.
	span := (to - from) / 1e3
	every := step(span / 2)
	for n := 0; float64(n)*every <= span; n++ {
		ms := float64(n) * every
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%g"/><text x="%.1f" y="14">%s ms</text>`,
			x(from+1e3*ms), x(from+1e3*ms), timelineTop-4, height, x(from+1e3*ms), short(ms))
	}
	for i, name := range names {
		fmt.Fprintf(&b, `<text x="2" y="%.1f">%s</text>`, timelineTop+laneHeight*float64(i)+14, html.EscapeString(cut(name, 15)))
	}
	for _, k := range order {
		batch := r.Timeline[k]
		y, width := timelineTop+laneHeight*float64(lane[k]), max(.8, x(batch.End)-x(batch.Start)-.6)
		late := ""
		if batch.Late {
			late = ", late"
		}
		fmt.Fprintf(&b, `<g><title>%s on %s: %d rows, %.2f to %.2f ms%s</title><rect class="f%d" x="%.1f" y="%.1f" width="%.1f" height="%g"/>`,
			html.EscapeString(r.Models[batch.Model].Name), html.EscapeString(r.Partitions[batch.Partition].ID), batch.Rows, batch.Start/1e3, batch.End/1e3, late,
			batch.Model%colours, x(batch.Start), y+1, width, laneHeight-3)
		if batch.Late {
			fmt.Fprintf(&b, `<line class="late" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, x(batch.Start), x(batch.Start)+width, y+laneHeight/2, y+laneHeight/2)
		}
		if text := fmt.Sprint(batch.Rows); width > float64(9*len(text)) {
			fmt.Fprintf(&b, `<text class="rows" x="%.1f" y="%.1f">%s</text>`, x(batch.Start)+2, y+14, text)
		}
		b.WriteString("</g>")
	}
	b.WriteString("</svg>")
	t.SVG = template.HTML(b.String()) //nolint:gosec // every text above is escaped
	return t
}

// cut shortens a name that is longer than so many letters.
func cut(name string, most int) string {
	letters := []rune(name)
	if len(letters) <= most {
		return name
	}
	return string(letters[:most-1]) + "…"
}

// lanes says which lane each batch of the timeline is in, and names the lanes. A partition has one, and further ones where batches run there at the
// same time, as those of several models do under segment.
func lanes(r *sim.Result) (lane []int, names []string) {
	order := make([]int, len(r.Timeline))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(r.Timeline[a].Start, r.Timeline[b].Start) })
	lane = make([]int, len(order))
	ends := make([][]float64, len(r.Partitions))
	for _, k := range order {
		b := r.Timeline[k]
		of := &ends[b.Partition]
		if lane[k] = slices.IndexFunc(*of, func(end float64) bool { return end <= b.Start }); lane[k] < 0 {
			lane[k] = len(*of)
			*of = append(*of, 0)
		}
		(*of)[lane[k]] = b.End
	}
	first := make([]int, len(r.Partitions))
	for i, p := range r.Partitions {
		first[i] = len(names)
		names = append(names, p.ID)
		for n := 2; n <= len(ends[i]); n++ {
			names = append(names, fmt.Sprintf("%s (%d)", p.ID, n))
		}
	}
	for k, b := range r.Timeline {
		lane[k] += first[b.Partition]
	}
	return lane, names
}
