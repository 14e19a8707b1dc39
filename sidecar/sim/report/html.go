// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"

	"github.com/conch-serving/conch/sidecar/sim"
)

//go:embed page.html
var page string

// maxTableBatches bounds the timeline's table, which is for readers who cannot see the drawing.
const maxTableBatches = 200

// colours of runs and models; beyond them they repeat.
const colours = 8

// HTML writes one page with everything in it: it loads nothing, and shows its tables and charts without JavaScript; the timeline's drawing
// needs it.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{"ms": ms, "percent": percent, "busy": busy, "f": func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"us": func(us int64) string { return ms(float64(us)) }, "mod": func(i int) int { return i % colours }}).Parse(page)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	v := struct {
		*Report
		Charts    []chart
		Rows      []row
		Timelines []timeline
		Searched  bool // the highest rate, of some run
		Colours   []int
		// Names are of the timelines' models; Legend has them where there are as few as colours and they are numbered alike in all runs.
		Names, Legend []string
	}{Report: r, Rows: rows(r.Runs), Searched: slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Goodput != nil })}
	perSecond := func(n uint64, width float64) float64 { return float64(n) / width }
	v.Charts = []chart{
		lines("Good requests a second, by when they arrived", "seconds", false, history(r.Runs, func(h sim.Interval, w float64) float64 { return perSecond(h.Good, w) })),
		lines("Bad requests a second, by when they arrived", "seconds", false, history(r.Runs, func(h sim.Interval, w float64) float64 { return perSecond(h.Bad, w) })),
		lines("GPUs that execute", "seconds", false, history(r.Runs, func(h sim.Interval, _ float64) float64 { return h.Busy })),
		lines("Batch sizes, % of executions", "rows of an execution", true, batches(r.Runs)),
	}
	for i, run := range r.Runs {
		if run.Result != nil && len(run.Result.Timeline) > 0 {
			v.Timelines = append(v.Timelines, timelineOf(i, run))
		}
	}
	for i := range colours {
		v.Colours = append(v.Colours, i)
	}
	alike := true
	for _, t := range v.Timelines {
		alike = alike && slices.Equal(t.Models, v.Timelines[0].Models)
		for _, name := range t.Models {
			if !slices.Contains(v.Names, name) {
				v.Names = append(v.Names, name)
			}
		}
	}
	if alike && len(v.Names) <= colours {
		v.Legend = v.Names
	}
	if err := t.Execute(w, v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// row is one model in one run.
type row struct {
	Run string
	*sim.ModelResult
}

// rows put the runs of a model below each other, models in the order in which they first appear.
func rows(runs []Run) (all []row) {
	at := map[string]int{}
	var grouped [][]row
	for _, run := range runs {
		if run.Result == nil {
			continue
		}
		for i := range run.Result.Models {
			m := &run.Result.Models[i]
			k, known := at[m.Name]
			if !known {
				k = len(grouped)
				at[m.Name] = k
				grouped = append(grouped, nil)
			}
			grouped[k] = append(grouped[k], row{run.Name, m})
		}
	}
	for _, g := range grouped {
		all = append(all, g...)
	}
	return all
}

// chart is a drawing under its caption.
type chart struct {
	Title string
	SVG   template.HTML
}

// timeline is what the page's drawing needs.
type timeline struct {
	Index      int
	Name       string
	Models     []string
	Partitions []string
	// Batches are row of Partitions, model, rows, start and end in ms, late.
	Batches [][6]float64
	More    int
	// From and To are the first and the last start, in seconds.
	From, To float64
}

func (t timeline) First() [][6]float64 { return t.Batches[:min(len(t.Batches), maxTableBatches)] }

// At is a name by an index that a batch holds.
func (t timeline) At(names []string, i float64) string { return names[int(i)] }

func timelineOf(i int, run Run) timeline {
	t := timeline{Index: i, Name: run.Name}
	for _, m := range run.Result.Models {
		t.Models = append(t.Models, m.Name)
	}
	rows := lanes(run.Result, &t)
	for k, b := range run.Result.Timeline {
		late := 0.0
		if b.Late {
			late = 1
		}
		t.Batches = append(t.Batches, [6]float64{float64(rows[k]), float64(b.Model), float64(b.Rows), math.Round(b.Start) / 1e3, math.Round(b.End) / 1e3, late})
	}
	if n := len(t.Batches); n > 0 {
		t.From, t.To = t.Batches[0][3]/1e3, t.Batches[n-1][3]/1e3
	}
	t.More = max(0, len(t.Batches)-maxTableBatches)
	return t
}

// lanes names the rows of the drawing and says which each batch is in. A partition has one, and further ones where batches run there at the same time, as
// those of several models do under segment.
func lanes(r *sim.Result, t *timeline) []int {
	order := make([]int, len(r.Timeline))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(r.Timeline[a].Start, r.Timeline[b].Start) })
	lane, ends := make([]int, len(order)), make([][]float64, len(r.Partitions))
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
		first[i] = len(t.Partitions)
		t.Partitions = append(t.Partitions, p.ID)
		for n := 2; n <= len(ends[i]); n++ {
			t.Partitions = append(t.Partitions, fmt.Sprintf("%s, beside (%d)", p.ID, n))
		}
	}
	for k, b := range r.Timeline {
		lane[k] += first[b.Partition]
	}
	return lane
}
