// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// HTML writes the report as a page: see [Page].
func (r *Report) HTML(w io.Writer) error {
	p := &Page{Title: r.Title, Setup: r.Setup, Notes: r.Notes, Unknown: r.Unknown, NoCurves: r.NoCurves, Command: r.Command}
	var names []string
	for _, run := range r.Runs {
		s := Side{Name: run.Name, Result: run.Result, Held: run.Goodput, Curve: append(slices.Clone(run.Curve), Trials(run.Goodput)...)}
		if run.Result != nil && len(s.Curve) > 0 {
			p.Asked = run.Result.Total.Rate
		}
		p.Sides = append(p.Sides, s)
		names = append(names, run.Name)
	}
	p.Question = "Does " + names[0] + " hold this load?"
	if len(names) > 1 {
		p.Question = "Which serves this load best: " + strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1] + "?"
	}
	p.Verdict = Judge(p.Sides)
	p.Tables = []Table{ModelTable(p.Sides)}
	if events := EventTable(p.Sides); len(events.Rows) > 0 {
		p.Tables = append(p.Tables, events)
	}
	return p.HTML(w)
}

// spread is the range of a figure over seeds.
type spread struct {
	mid, low, high float64
	seeds          int
}

// badAt is the bad rate of the worst model at the rate that was asked about: of the run itself, and of the same rate under other seeds.
func badAt(s Side) spread {
	asked, nearest := s.Result.Total.Rate, map[uint64]Trial{}
	for _, t := range s.Curve {
		before, known := nearest[t.Seed]
		if away := math.Abs(t.Rate - asked); away <= .01*asked && (!known || away < math.Abs(before.Rate-asked)) {
			nearest[t.Seed] = t
		}
	}
	nearest[s.Result.Seed] = Trial{Bad: s.Result.WorstBadRate()}
	all := make([]float64, 0, len(nearest))
	for _, t := range nearest {
		all = append(all, t.Bad)
	}
	slices.Sort(all)
	n := len(all)
	return spread{(all[(n-1)/2] + all[n/2]) / 2, all[0], all[n-1], n}
}

// text is the figure with its range.
func (s spread) text(format func(float64) string) string {
	if s.seeds < 2 {
		return format(s.mid)
	}
	return fmt.Sprintf("%s (%s to %s over %d seeds)", format(s.mid), format(s.low), format(s.high), s.seeds)
}

// Judge says of one side whether it holds the load, and of several which is the best.
func Judge(sides []Side) Verdict {
	for _, s := range sides {
		if s.Result == nil {
			return Verdict{"There is no result.", "no result", Unsure}
		}
	}
	switch {
	case len(sides) == 1:
		return alone(sides[0])
	case !slices.ContainsFunc(sides, func(s Side) bool { return s.Held == nil }):
		return byRate(sides)
	}
	return byBad(sides)
}

// held says what a side holds.
func held(s Side) string {
	return fmt.Sprintf("%s (%s to %s over %d seeds)", Rate(s.Held.Rate), Rate(s.Held.Low), Rate(s.Held.High), len(s.Held.All))
}

func alone(s Side) Verdict {
	b := badAt(s)
	v := Verdict{fmt.Sprintf("At %s requests per second, %s of the worst model's requests are bad", Rate(s.Result.Total.Rate), b.text(percent)), "not certain", Unsure}
	switch {
	case b.high <= .01:
		v.Text, v.Label, v.Judgement = v.Text+": the load is held", "held", Good
	case b.low > .01:
		v.Text, v.Label, v.Judgement = v.Text+": the load, of which at most 1% may be bad, is not held", "not held", Bad
	default:
		v.Text += ": whether the load, of which at most 1% may be bad, is held depends on chance"
	}
	if b.seeds < 2 {
		v.Text += " (one seed, so that the spread is not known)"
	}
	if s.Held != nil {
		v.Text += "; the highest rate that is held is " + held(s)
	}
	v.Text += "."
	return v
}

// byRate compares by the highest rates that are held.
func byRate(sides []Side) Verdict {
	order := slices.Clone(sides)
	slices.SortStableFunc(order, func(a, b Side) int { return cmp.Compare(b.Held.Rate, a.Held.Rate) })
	first, second := order[0], order[1]
	text := fmt.Sprintf("%s holds %s requests per second with at most 1%% bad for every model, and %s %s", first.Name, held(first), second.Name, held(second))
	if first.Held.Low <= second.Held.High {
		return Verdict{text + ": the difference is within the spread.", "no certain difference", Unsure}
	}
	if second.Held.Rate > 0 {
		text += fmt.Sprintf(": %.2f times as much", first.Held.Rate/second.Held.Rate)
	}
	return Verdict{text + ".", first.Name + " holds more", Good}
}

// byBad compares by what is bad at the rate that was asked about.
func byBad(sides []Side) Verdict {
	order := slices.Clone(sides)
	slices.SortStableFunc(order, func(a, b Side) int { return cmp.Compare(badAt(a).mid, badAt(b).mid) })
	first, second := order[0], order[1]
	a, b := badAt(first), badAt(second)
	text := fmt.Sprintf("At %s requests per second, %s of the worst model's requests are bad with %s and %s with %s",
		Rate(first.Result.Total.Rate), a.text(percent), first.Name, b.text(percent), second.Name)
	both := ""
	switch {
	case a.high <= .01 && b.high <= .01:
		both = "; both hold the load (at most 1% bad)"
	case a.low > .01 && b.low > .01:
		both = "; neither holds the load (at most 1% bad)"
	}
	switch {
	case a.seeds < 2 || b.seeds < 2:
		return Verdict{text + "; with one seed the spread is not known.", "not certain", Unsure}
	case a.high < b.low:
		return Verdict{text + both + ending(both) + first.Name + " is better.", first.Name + " is better", Good}
	}
	return Verdict{text + both + ending(both) + "the difference is within the spread.", "no certain difference", Unsure}
}

// ending joins the last part of the sentence.
func ending(both string) string {
	if both == "" {
		return ": "
	}
	return ", and "
}

// Rate is a number of requests per second for a reader.
func Rate(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
