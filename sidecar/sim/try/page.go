// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package try

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// factors of the snapshot's load that plans are tried under, draws other arrivals like its traffic.
var factors = [...]float64{.5, .75, .9, 1, 1.1, 1.25, 1.5, 2, 3, 4}

const (
	draws = 3
	// bins are the intervals of what is shown over time.
	bins = 60
)

// Page is a trial as a report that stands alone: the policy's plan beside the one in force, under the snapshot's load and others. Progress is
// called with how much of it is done.
func (s *Session) Page(ctx context.Context, given *policy.Snapshot, t *Trial, progress func(done, all float64)) (*report.Page, error) {
	name := strings.TrimSpace(t.Policy + " " + t.Version)
	p := &report.Page{
		Title: "Policy " + t.Policy, Question: "Would the plan of " + name + " serve this load better than the plan in force?",
		Setup: append(report.World(given), report.Load(given)),
		Unknown: []string{
			"whether batches take as long as the snapshot's profiles say: an error there is in every figure here;",
			"what changing from one plan to the other costs the requests of that time: both plans are simulated as if they had been in force all along;",
			"what callers do when answers are late: here they go on as before.",
		},
	}
	p.Setup = append(p.Setup, report.Fact{Name: "Snapshot", Text: fmt.Sprintf("revision %d", given.GetRevision())})
	if len(s.used) > 0 {
		p.Setup = append(p.Setup, report.Fact{Name: "Parameters", Text: parameters(s.used)})
	}
	switch {
	case t.Error != "":
		p.Verdict = report.Verdict{Text: "The policy gave no plan: " + t.Error, Label: "no plan", Judgement: report.Bad}
		return p, nil
	case len(t.Violations) > 0:
		p.Verdict = report.Verdict{Text: "Conch would refuse the plan: " + strings.Join(t.Violations, "; "), Label: "refused", Judgement: report.Bad}
		p.Tables = plans(t)
		return p, nil
	}
	p.Tables = plans(t)
	traffic := s.o.Traffic
	if traffic == nil {
		var err error
		if traffic, err = evaluate.Generate(given, s.o.Length); err != nil {
			return nil, err
		}
	}
	if len(traffic.Arrivals) == 0 {
		p.Verdict, p.NoCurves = report.Verdict{Text: "Nothing arrives in this snapshot, so that no plan can be judged.", Label: "no load", Judgement: report.Unsure}, "nothing arrives."
		return p, nil
	}
	p.Setup = append(p.Setup, report.Fact{Name: "Traffic", Text: fmt.Sprintf("%s, %v; other rates have the same arrivals closer together or further apart, repetitions are drawn anew",
		traffic.Source, traffic.Length.Round(time.Millisecond))})
	sides := []report.Side{{Name: t.Policy}}
	all := []*policy.Plan{t.Plan}
	if len(given.GetCurrent().GetPartitions()) > 0 {
		sides, all = append(sides, report.Side{Name: "the plan in force"}), append(all, given.GetCurrent())
	} else {
		p.Question = "Would the plan of " + name + " hold this load? (No plan is in force.)"
	}
	if err := s.curves(ctx, given, traffic, all, sides, progress); err != nil {
		return nil, err
	}
	p.Sides, p.Asked = sides, sides[0].Result.Total.Rate
	p.Verdict = report.Judge(sides)
	if c := t.Change; c != nil {
		p.Setup = append(p.Setup, report.Fact{Name: "Change from the plan in force", Text: fmt.Sprintf("%d models to load (%.1f s one after the other), %d partitions to stop or replace", c.Loads, c.LoadSeconds, c.Stops)})
	}
	p.Tables = append([]report.Table{report.ModelTable(sides)}, p.Tables...)
	return p, nil
}

// curves fills in the sides' results under the traffic, and what is bad under others.
func (s *Session) curves(ctx context.Context, given *policy.Snapshot, traffic *evaluate.Traffic, all []*policy.Plan, sides []report.Side, progress func(done, all float64)) error {
	done := 0.0
	steps := float64(len(all) * len(factors) * draws)
	for draw := range uint32(draws) {
		drawn := traffic
		if draw > 0 {
			var err error
			if drawn, err = evaluate.Redraw(given, traffic, draw); err != nil {
				return err
			}
		}
		for f, factor := range factors {
			hopeless := factor > 1
			e := evaluate.New(given, faster(drawn, factor))
			for i, plan := range all {
				w := e.World(proto.CloneOf(plan))
				w.Bins = bins
				r, err := sim.Run(ctx, w)
				if err != nil {
					return fmt.Errorf("%s: it cannot be simulated: %w", sides[i].Name, err)
				}
				if draw == 0 && factor == 1 {
					r.Seed = 0
					sides[i].Result = r
				}
				asked := factor * float64(len(traffic.Arrivals)) / traffic.Length.Seconds()
				sides[i].Curve = append(sides[i].Curve, report.Trial{Seed: uint64(draw), Rate: asked, Bad: r.WorstBadRate()})
				hopeless = hopeless && r.WorstBadRate() > report.Hopeless
				done++
				progress(done, steps)
			}
			if hopeless {
				done += float64(len(all) * (len(factors) - 1 - f))
				break
			}
		}
	}
	return nil
}

// parameters of the policy, by name.
func parameters(used map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(used)) {
		all = append(all, name+"="+used[name])
	}
	return strings.Join(all, ", ")
}

// faster are the same arrivals in less time, so many times as fast.
func faster(t *evaluate.Traffic, factor float64) *evaluate.Traffic {
	out := *t
	out.Length = time.Duration(float64(t.Length) / factor)
	out.Arrivals = make([]workload.Arrival, len(t.Arrivals))
	for i, a := range t.Arrivals {
		a.At = time.Duration(float64(a.At) / factor)
		out.Arrivals[i] = a
	}
	return &out
}

// plans are the policy's plan, and why models are where they are, as tables.
func plans(t *Trial) []report.Table {
	plan := report.Table{Title: "The plan", Head: []string{"partition", "on", "serves", "share", "rank"}, Text: 3}
	for _, p := range t.Plan.GetPartitions() {
		on := strings.Join(p.GetGpus(), "+")
		if p.OnCPU() {
			on = "cpu"
		}
		var serves []string
		for _, in := range p.GetInstances() {
			text := in.GetModel()
			if in.GetMaxBatch() > 0 {
				text += fmt.Sprintf(" (batch %d)", in.GetMaxBatch())
			}
			serves = append(serves, text)
		}
		plan.Rows = append(plan.Rows, []string{p.GetId(), on, strings.Join(serves, ", "), fmt.Sprintf("%d%%", p.GetThreadPercentage()), fmt.Sprint(p.GetRank())})
	}
	all := []report.Table{plan}
	if len(t.Plan.GetUnplaced()) > 0 {
		unplaced := report.Table{Title: "Models without a place", Head: []string{"model", "why"}, Text: 2}
		for _, u := range t.Plan.GetUnplaced() {
			unplaced.Rows = append(unplaced.Rows, []string{u.GetModel(), u.GetText()})
		}
		all = append(all, unplaced)
	}
	return all
}
