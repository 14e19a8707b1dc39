// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// tab is one of the lists.
type tab int

const (
	models tab = iota
	gpus
	waiting
	happened
	tabs
)

func (t tab) String() string { return [...]string{"Models", "GPUs", "Waiting", "Events"}[t] }

// lists are the tables of the tabs, before there are rows. Each is in the order in which a person looks for trouble.
func lists() [tabs]table {
	return [tabs]table{
		models: {by: 4, down: true, columns: []column{
			{"MODEL", 0, false}, {"STATE", 8, false}, {"REQ/S", 8, true}, {"", 10, false}, {"BAD", 7, true}, {"P99", 8, true}, {"SLO", 8, true}, {"WAIT", 6, true}, {"LAST HOUR", 12, false},
		}},
		gpus: {columns: []column{
			{"GPU", 14, false}, {"SHARE", 13, false}, {"BUSY", 5, true}, {"", 10, false}, {"STATE", 11, false}, {"SERVES", 0, false},
		}},
		waiting: {by: 1, down: true, columns: []column{
			{"MODEL", 18, false}, {"WAIT", 6, true}, {"", 10, false}, {"OLDEST", 8, true}, {"SLACK", 8, true}, {"WHY", 0, false},
		}},
		happened: {down: true, columns: []column{
			{"TIME", 11, false}, {"KIND", 18, false}, {"WHO", 10, false}, {"WHAT", 0, false},
		}},
	}
}

// rows of a tab.
func (t tab) rows(s *State, h history) []row {
	switch t {
	case models:
		return modelRows(s, h)
	case gpus:
		return gpuRows(s, h)
	case waiting:
		return waitingRows(s, h)
	}
	return eventRows(s)
}

func text(s string) cell { return cell{text: s, sort: s} }

func number(v float64, s string, t tone) cell { return cell{s, v, t} }

// count is a number that is nothing to look at where it is 0.
func count(n int) cell {
	if n == 0 {
		return number(0, "-", soft)
	}
	return number(float64(n), fmt.Sprint(n), plain)
}

func modelRows(s *State, h history) (all []row) {
	for _, m := range s.Models {
		rate := h[rateOf(m.Name)]
		all = append(all, row{key: m.Name, cells: []cell{
			text(m.Name), state(m), number(m.Rate, decimal(m.Rate), plain), {text: spark(rate, 0), sort: m.Rate, tone: soft},
			badness(m), latency(m), number(m.SLOSeconds, milliseconds(m.SLOSeconds), soft), count(m.Queued), hourly(s, m.Name),
		}})
	}
	return all
}

func state(m api.Model) cell {
	t := good
	switch m.State {
	case api.ModelReady:
		if c, ok := api.ConditionOf(m.Conditions, api.ConditionDegraded); ok && c.Holds {
			return cell{"degraded", "degraded", warn}
		}
	case api.ModelUnloaded:
		t = soft
	case api.ModelUnplaced:
		t = warn
	default:
		t = bad
	}
	return cell{string(m.State), string(m.State), t}
}

// badness puts models that do not serve before all others.
func badness(m api.Model) cell {
	switch {
	case m.State != api.ModelReady && m.State != api.ModelUnloaded:
		return number(2, "-", soft)
	case m.Rate == 0 && m.BadRate == 0: // requests that are refused may not count as arrived
		return number(0, "-", soft)
	case m.BadRate > .01:
		return number(m.BadRate, percent(m.BadRate)+"!", bad)
	}
	return number(m.BadRate, percent(m.BadRate)+" ", plain)
}

func latency(m api.Model) cell {
	t := plain
	if m.SLOSeconds > 0 && m.LatencyP99Seconds > m.SLOSeconds {
		t = bad
	}
	return number(m.LatencyP99Seconds, milliseconds(m.LatencyP99Seconds), t)
}

// nameOf is a GPU's name, with its node's where there are several.
func nameOf(s *State, g api.GPU) string {
	if slices.ContainsFunc(s.GPUs, func(o api.GPU) bool { return o.Node != g.Node }) {
		return g.Key()
	}
	return g.ID
}

func gpuRows(s *State, h history) (all []row) {
	for _, g := range s.GPUs {
		kind := g.Type
		condition := cell{text: "in use", sort: "in use"}
		switch {
		case g.Cordon != nil && g.Cordon.Drain:
			condition = cell{"drained", "drained", warn}
		case g.Cordon != nil:
			condition = cell{"cordoned", "cordoned", warn}
		case g.Unavailable != "":
			condition = cell{"unavailable", "unavailable", warn}
		case len(g.Partitions) == 0:
			condition = cell{"free", "free", soft}
		}
		serves := cell{tone: soft}
		if g.Emulated {
			serves.text = "emulated"
		}
		b, name := busy(g), nameOf(s, g)
		all = append(all, row{key: "gpu " + g.Key(), cells: []cell{
			text(name), {text: kind, sort: kind, tone: soft}, number(b, whole(b), plain), {text: spark(h[busyOf(g.Key())], 1), sort: b, tone: soft}, condition, serves,
		}})
		for _, p := range g.Partitions {
			b := p.BusyShare
			all = append(all, row{key: "partition " + p.ID + " of " + g.Key(), under: "gpu " + g.Key(), cells: []cell{
				{text: "  " + p.ID, sort: name}, {text: share(p), sort: g.Type}, number(b, whole(b), plain),
				{text: spark(h[busyOf(p.ID+" of "+g.Key())], 1), sort: b, tone: soft}, place(p), {text: strings.Join(p.Serving, " "), sort: ""},
			}})
		}
	}
	return all
}

// share is a partition's part of its GPU, drawn and in percent.
func share(p api.Partition) string {
	const cells = 8
	full := min(cells, max(1, (p.ThreadPercentage*cells+50)/100))
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full) + fmt.Sprintf(" %d%%", p.ThreadPercentage)
}

func place(p api.Partition) cell {
	is := func(c api.ConditionType) bool { got, ok := api.ConditionOf(p.Conditions, c); return ok && got.Holds }
	switch {
	case p.Retiring:
		return cell{"retiring", "retiring", soft}
	case !p.Up:
		return cell{"down", "down", bad}
	case is(api.ConditionDegraded):
		return cell{"degraded", "degraded", warn}
	case is(api.ConditionProgressing):
		return cell{"progressing", "progressing", soft}
	}
	return cell{"up", "up", good}
}

// waitingRows are models for which requests wait, and those that nobody serves.
func waitingRows(s *State, h history) (all []row) {
	for _, m := range s.Models {
		w := waitingFor(s, m.Name)
		if w.Requests == 0 && m.State == api.ModelReady || m.State == api.ModelUnloaded {
			continue
		}
		why := state(m)
		if m.StateReason != "" {
			why.text += ": " + m.StateReason
		}
		if w.Requests > 0 && m.State == api.ModelReady {
			why = cell{text: candidate(w)}
		}
		all = append(all, row{key: m.Name, cells: []cell{
			text(m.Name), count(w.Requests), {text: spark(h[queuedOf(m.Name)], 0), sort: float64(w.Requests), tone: soft},
			number(w.OldestSeconds, milliseconds(w.OldestSeconds), plain), slack(w), why,
		}})
	}
	return all
}

// requestsOf is what became of a model's requests.
func requestsOf(s *State, model string) api.ModelRequests {
	if i := slices.IndexFunc(s.Requests, func(r api.ModelRequests) bool { return r.Model == model }); i >= 0 {
		return s.Requests[i]
	}
	return api.ModelRequests{Model: model}
}

// waitingFor is what waits for a model.
func waitingFor(s *State, model string) api.ModelWaiting {
	if i := slices.IndexFunc(s.Waiting, func(w api.ModelWaiting) bool { return w.Model == model }); i >= 0 {
		return s.Waiting[i]
	}
	return api.ModelWaiting{Model: model}
}

// candidate is the batch that would be executed now.
func candidate(w api.ModelWaiting) string {
	switch w.CandidateRows {
	case 0:
		return "no batch can be executed"
	case 1:
		return "a batch of 1 row is next"
	}
	return fmt.Sprintf("a batch of %d rows is next", w.CandidateRows)
}

// slack is the time until the candidate must start; below 0 its deadline cannot be kept.
func slack(w api.ModelWaiting) cell {
	if w.SlackSeconds == nil {
		return number(math.Inf(1), "-", soft)
	}
	v := *w.SlackSeconds
	if v < 0 {
		return number(v, "-"+milliseconds(-v), bad)
	}
	return number(v, milliseconds(v), plain)
}

func eventRows(s *State) (all []row) {
	for _, e := range s.Events {
		what := cell{text: e.Message, sort: e.Message}
		for _, trouble := range []string{"degraded", "failed", "down", "rejected", "fault"} {
			if strings.Contains(string(e.Kind), trouble) {
				what.tone = warn
			}
		}
		all = append(all, row{key: fmt.Sprintf("%020d", e.ID), cells: []cell{
			{text: moment(e.Time.Local(), s.Time.Local()), sort: float64(e.ID), tone: soft}, text(string(e.Kind)), {text: e.Author, sort: e.Author, tone: soft}, what,
		}})
	}
	return all
}

// moment is the time of day, with the date where that is another than now's.
func moment(t, now time.Time) string {
	switch {
	case t.Year() != now.Year():
		return t.Format(time.DateOnly)
	case t.YearDay() != now.YearDay():
		return t.Format("01-02 15:04")
	}
	return t.Format(time.TimeOnly)
}

func decimal(v float64) string {
	if v >= 10000 {
		return fmt.Sprintf("%.1fk", v/1000)
	}
	return fmt.Sprintf("%.1f", v)
}

func percent(fraction float64) string { return fmt.Sprintf("%.1f%%", 100*fraction) }
func whole(fraction float64) string   { return fmt.Sprintf("%.0f%%", 100*fraction) }

// milliseconds renders seconds; 0 is unknown.
func milliseconds(seconds float64) string {
	switch {
	case seconds == 0:
		return "-"
	case seconds < 50e-6:
		return "<0.1 ms"
	case seconds >= 10:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds >= .1:
		return fmt.Sprintf("%.0f ms", 1e3*seconds)
	}
	return fmt.Sprintf("%.1f ms", 1e3*seconds)
}
