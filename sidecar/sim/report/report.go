// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/conch-serving/conch/sidecar/sim"
)

// Report is what is shown. Its JSON is stable: fields are only added.
type Report struct {
	Version int    `json:"version"` // of this format: 1
	Title   string `json:"title"`
	// Notes say what a reader must know to judge the figures.
	Notes []string `json:"notes,omitempty"`
	Runs  []Run    `json:"runs"`
	// Setup, Unknown, NoCurves and Command are for the page: see [Page].
	Setup    []Fact   `json:"-"`
	Unknown  []string `json:"-"`
	NoCurves string   `json:"-"`
	Command  string   `json:"-"`
}

// Run is one result under the name of what makes it different: a discipline, a policy, "live".
type Run struct {
	Name   string      `json:"name"`
	Result *sim.Result `json:"result,omitempty"`
	// Goodput is the highest rate that holds, where that was asked for.
	Goodput *sim.Found `json:"goodput,omitempty"`
	// Curve is for the page: other rates and seeds.
	Curve []Trial `json:"-"`
}

// New makes a report.
func New(title string, runs ...Run) *Report { return &Report{Version: 1, Title: title, Runs: runs} }

// JSON writes the report, indented.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Table writes the report for a terminal: a line per run and model.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tMODEL\tREQ/S\tGOOD/S\tBAD\tP50\tP99\tSLO\tBATCH\tGPUS BUSY")
	for _, run := range r.Runs {
		if run.Result == nil {
			continue
		}
		for i := range run.Result.Models {
			m := &run.Result.Models[i]
			fmt.Fprintf(t, "%q\t%q\t%.1f\t%.1f\t%s\t%s\t%s\t%s\t%.1f\t\n",
				plain(run.Name), plain(m.Name), m.Rate, m.Goodput, percent(m.BadRate), ms(m.Latency.P50Us), ms(m.Latency.P99Us), ms(float64(m.SLOUs)), m.MeanBatch)
		}
		all := run.Result.Total
		fmt.Fprintf(t, "%q\tall\t%.1f\t%.1f\t%s\t\t\t\t\t%s\n", plain(run.Name), all.Rate, all.Goodput, percent(all.BadRate), busy(run.Result))
	}
	for _, run := range r.Runs {
		if f := run.Goodput; f != nil {
			fmt.Fprintf(t, "%q holds %.1f req/s (%.1f to %.1f over %d seeds)\n", plain(run.Name), f.Rate, f.Low, f.High, len(f.All))
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(t, "note: %s\n", n)
	}
	return t.Flush()
}

// plain is a name that may be printed with %q where it needs it and as it is where it does not.
type plain string

// Format implements fmt.Formatter: names of strangers cannot steer a terminal.
func (p plain) Format(s fmt.State, _ rune) {
	quoted := fmt.Sprintf("%q", string(p))
	if quoted == `"`+string(p)+`"` {
		quoted = string(p)
	}
	_, _ = io.WriteString(s, quoted)
}

func percent(fraction float64) string { return fmt.Sprintf("%.2f%%", 100*max(0, fraction)) }

// ms renders microseconds; 0 is unknown or none.
func ms(us float64) string {
	if us <= 0 {
		return "-"
	}
	if us >= 1e7 {
		return fmt.Sprintf("%.1fs", us/1e6)
	}
	return fmt.Sprintf("%.4gms", us/1e3)
}

// busy is how many GPUs executed on average over the history, of how many there were.
func busy(r *sim.Result) string {
	var used, had float64
	for _, h := range r.History {
		used += h.Busy
		had += h.GPUs
	}
	n := float64(max(1, len(r.History)))
	return fmt.Sprintf("%.2f of %.4g", used/n, had/n)
}
