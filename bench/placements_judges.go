// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/plugins/conch"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// The second judge has profiles that no policy knows: each model takes, on each type of GPU, profileError more or less than what the policies planned
// with. Which of the two is drawn, profileDraws times, from profileSeed, which was drawn once from /dev/urandom before anything was judged so.
const (
	profileError = .15
	profileSeed  = 1804242785
	profileDraws = 3
)

// mostImproved is how many of the others' policies are improved in a scenario: those that hold the most.
const mostImproved = 3

// wrong is the question with a judge whose profiles are those of a draw.
func (q question) wrong(draw int) question {
	q.judging = proto.CloneOf(q.snapshot)
	for _, p := range q.judging.GetProfiles() {
		factor := 1 + profileError
		if workload.Seed(profileSeed, "profile", fmt.Sprintf("%d %s %s", draw, p.GetModel(), p.GetGpuType())).IntN(2) == 0 {
			factor = 1 - profileError
		}
		for _, at := range p.GetPoints() {
			at.LatencyUs.Value *= factor
			at.LatencyUpperUs *= factor
		}
	}
	return q
}

// searching makes another plan of a policy's, with as many evaluations as the policy conch has.
type searching func(context.Context, *policy.Snapshot, policy.Host, *policy.Plan) (*policy.Plan, error)

// withoutOthers is conch's own search without the plans of others to begin with.
func withoutOthers(ctx context.Context, s *policy.Snapshot, h policy.Host, _ *policy.Plan) (*policy.Plan, error) {
	return conch.New().Plan(ctx, s, h)
}

// searched is the plan that the search makes of a policy's plan; why says what went wrong with that, else it is empty.
func (p placement) searched(ctx context.Context, q question, from *policy.Plan) (made *policy.Plan, why string, err error) {
	s := proto.CloneOf(q.snapshot)
	made, err = p.search(ctx, s, (&evaluate.InProcess{Recorded: q.recorded}).Host(s), from)
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	if err != nil {
		return nil, err.Error(), nil //nolint:nilerr // a policy that gives no plan holds no load
	}
	return made, "", nil
}

// rivals are the policies before the judges: those of the matrix, and every model on every half of a GPU, which is one of the plans that conch begins
// with and no other policy has.
func rivals() []placement {
	halves := placement{name: "halves", policy: simplest, parameters: map[string]string{"partitions": "* = 50, 50"}}
	return append(placements(), halves)
}

// bothJudges finds the highest load that holds, from a step on: before the judge with the policies' own profiles, and for each draw of profiles that are
// wrong.
func (c *contest) bothJudges(ctx context.Context, from int) error {
	if err := c.search(ctx, from); err != nil {
		return err
	}
	for draw := range profileDraws {
		held, err := highestStep(c.held, func(k int) (bool, error) {
			a, err := c.answerAt(ctx, k)
			if err != nil || a.refused != "" {
				return false, err
			}
			q, err := c.question(c.arena.at(k))
			if err != nil {
				return false, err
			}
			outcome, err := q.wrong(draw).judge(ctx, a.plan)
			return len(outcome.GetViolations()) == 0 && outcome.GetBadRate() <= holds, err
		})
		if err != nil {
			return err
		}
		c.wrong = append(c.wrong, c.arena.held(held))
	}
	c.bench.say(fmt.Sprintf("%s, %s: holds %.0f req/s with profiles that are wrong", c.arena.name, c.name, c.wrong))
	return nil
}

// trial is one scenario before the judges.
type trial struct {
	arena arena
	// others are the policies but ours, improved the best of them with conch's search.
	others, improved []*contest
	// ours begins with the plans of others too, alone does not.
	ours, alone *contest
}

// placementJudges compares conch with the others once what conch alone has is given to them, or taken from it: its search with as many evaluations, and
// their plans to begin with. All are judged by the simulator with the profiles that they planned with, and with profiles that are wrong.
func (b *bench) placementJudges(ctx context.Context, r *figure.Report) error {
	all, err := arenas()
	if err != nil {
		return err
	}
	var trials []*trial
	var others []*contest
	for _, a := range all {
		if !strings.Contains("judges."+a.name, b.only) {
			continue
		}
		t := &trial{arena: a}
		for _, p := range rivals() {
			c := &contest{bench: b, arena: a, placement: p}
			if p.name == ours {
				t.ours = c
				continue
			}
			t.others = append(t.others, c)
		}
		others = append(others, t.others...)
		trials = append(trials, t)
	}
	if len(trials) == 0 {
		return fmt.Errorf("placements-judges: no scenario has %s in its name", b.only)
	}
	if err := together(ctx, others, func(ctx context.Context, c *contest) error { return c.bothJudges(ctx, 0) }); err != nil {
		return err
	}
	var searches []*contest
	from := map[*contest]int{}
	for _, t := range trials {
		best := slices.SortedStableFunc(slices.Values(t.others), func(a, b *contest) int { return cmp.Compare(b.load(), a.load()) })
		for _, c := range best[:mostImproved] {
			p := c.placement
			p.name, p.search = p.name+" improved", conch.Improve
			better := &contest{bench: b, arena: t.arena, placement: p}
			t.improved, from[better] = append(t.improved, better), c.held
		}
		t.alone = &contest{bench: b, arena: t.arena, placement: placement{name: ours + " alone", policy: simplest, search: withoutOthers}}
		from[t.ours], from[t.alone] = best[0].held, best[0].held
		searches = append(append(searches, t.ours, t.alone), t.improved...)
	}
	if err := together(ctx, searches, func(ctx context.Context, c *contest) error { return c.bothJudges(ctx, from[c]) }); err != nil {
		return err
	}
	judgesSummary(trials, r)
	r.Emulated = "everything, as in placements: simulated time on GPUs that are arithmetic"
	return nil
}

var wrongNote = fmt.Sprintf("judged with profiles that are %.0f%% wrong, %d draws", 100*profileError, profileDraws)

// report adds the figures of one scenario: what each policy holds.
func (t *trial) report(r *figure.Report) {
	add := func(c *contest, name, note string) {
		name = "judges." + t.arena.name + "." + name
		r.Add(name, c.load(), "req/s", note)
		r.AddRuns(name+"_wrong", c.wrong, "req/s", wrongNote)
	}
	for _, c := range t.others {
		add(c, c.name+".held", "highest load with at most 1% bad of all requests")
	}
	for _, c := range t.improved {
		add(c, strings.TrimSuffix(c.name, " improved")+".improved", "that its plan holds once conch's search has improved it, with as many evaluations as conch has")
	}
	add(t.ours, ours+".held", "highest load with at most 1% bad of all requests")
	add(t.alone, ours+".alone", "that conch holds where it does not begin with the plans of others")
}

// judgesSummary compares ours with the best of the others, as they are and improved, and with ours alone, before both judges.
func judgesSummary(trials []*trial, r *figure.Report) {
	counts := map[string]int{}
	var order []string
	for _, t := range trials {
		t.report(r)
		for _, judge := range []struct {
			suffix, note string
			value        func(*contest) float64
		}{{"", "", (*contest).load}, {"_wrong", "; " + wrongNote, func(c *contest) float64 { return stat.Mean(c.wrong, nil) }}} {
			most := func(all []*contest) *contest {
				return slices.MaxFunc(all, func(a, b *contest) int { return cmp.Compare(judge.value(a), judge.value(b)) })
			}
			for _, rival := range []struct {
				what string
				by   *contest
			}{{"best", most(t.others)}, {"improved", most(t.improved)}, {"alone", t.alone}} {
				what := rival.what + judge.suffix
				ratio := judge.value(t.ours) / judge.value(rival.by)
				r.Add("judges."+t.arena.name+".over_"+what, ratio, "ratio", overNote+strings.TrimSuffix(rival.by.name, " improved")+judge.note)
				if _, ok := counts[what]; !ok {
					counts[what] = 0
					order = append(order, what)
				}
				if ratio >= .995 {
					counts[what]++
				}
			}
		}
	}
	for _, what := range order {
		r.Add("judges.at_least_"+what, float64(counts[what]), "scenarios", fmt.Sprintf("of %d, where conch reaches .995 of that", len(trials)))
	}
}

// overNote is followed by the name of a policy.
const overNote = "load held by conch over that held by "

// judgesTable is ours over the others, before both judges.
func judgesTable(f byName) string {
	all, err := arenas()
	if err != nil {
		return "" // there are no figures of scenarios that cannot be made
	}
	var rows [][]string
	for _, a := range all {
		cells := []string{"`" + a.name + "`"}
		for _, what := range []string{"best", "improved", "alone", "best_wrong", "improved_wrong", "alone_wrong"} {
			v, ok := f["judges."+a.name+".over_"+what]
			cell := "–"
			if ok {
				cell = fmt.Sprintf("%.2f", v.Value)
				by, _, _ := strings.Cut(strings.TrimPrefix(v.Note, overNote), ";")
				if !strings.HasPrefix(what, "alone") {
					cell += " of " + by
				}
			}
			cells = append(cells, cell)
		}
		rows = append(rows, cells)
	}
	return write([]string{
		"load held by `conch` over", "best of the others", "best once improved", "`conch` without their plans", "best, profiles wrong", "best once improved, profiles wrong", "`conch` without their plans, profiles wrong",
	}, rows)
}
