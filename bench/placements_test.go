// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/plugins/policy"
)

// One scenario in full, in small: every policy answers, and the remark on Conch's policy is its ratio to the best of the others.
func TestPlacementsOfOneScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds of simulations")
	}
	b, out := tiny("tight_heavy")
	r := &figure.Report{File: "placements", Command: "make compare"}
	require.NoError(t, b.placementMatrix(t.Context(), r))
	require.NoError(t, r.Validate())
	require.Contains(t, out.String(), "gpulet_evensplit")
	f := figuresOf(r)
	best := 0.0
	for _, p := range placements() {
		held, ok := f["placements.tight_heavy."+p.name+".held"]
		require.True(t, ok, p.name)
		if p.name != ours {
			best = max(best, held)
		}
	}
	require.InDelta(t, f["placements.tight_heavy.conch.held"]/best, f["placements.tight_heavy.over_best.held"], 1e-9)

	b, _ = tiny("nowhere")
	require.ErrorContains(t, b.placementMatrix(t.Context(), r), "nowhere")
}

// One scenario before the judges, in small: the best of the others are improved, and conch is asked without their plans.
func TestJudgesOfOneScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds of simulations")
	}
	b, _ := tiny("tight_heavy")
	r := &figure.Report{File: "placements-judges", Command: "make bench BENCH=placements-judges"}
	require.NoError(t, b.placementJudges(t.Context(), r))
	require.NoError(t, r.Validate())
	f := figuresOf(r)
	best, improved, how := 0.0, 0.0, 0
	for _, p := range rivals() {
		held, ok := f["judges.tight_heavy."+p.name+".held"]
		require.True(t, ok, p.name)
		require.Contains(t, f, "judges.tight_heavy."+p.name+".held_wrong")
		if p.name == ours {
			continue
		}
		best = max(best, held)
		if v, ok := f["judges.tight_heavy."+p.name+".improved"]; ok {
			require.GreaterOrEqual(t, v, .9*held, "%s: a plan that is improved holds about as much at least, by arrivals that the search did not see", p.name)
			improved, how = max(improved, v), how+1
		}
	}
	require.Equal(t, mostImproved, how)
	require.InDelta(t, f["judges.tight_heavy.conch.held"]/best, f["judges.tight_heavy.over_best"], 1e-9)
	require.InDelta(t, f["judges.tight_heavy.conch.held"]/improved, f["judges.tight_heavy.over_improved"], 1e-9)
	require.InDelta(t, f["judges.tight_heavy.conch.held"]/f["judges.tight_heavy.conch.alone"], f["judges.tight_heavy.over_alone"], 1e-9)
	for _, name := range []string{"best_wrong", "improved_wrong", "alone_wrong"} {
		require.Positive(t, f["judges.tight_heavy.over_"+name], name)
	}
	require.Contains(t, judgesTable(byNameOf([]*figure.Report{r})), "`tight_heavy`")

	b, _ = tiny("nowhere")
	require.ErrorContains(t, b.placementJudges(t.Context(), r), "nowhere")
}

// A policy that holds little is found to hold that, and not nothing.
func TestTheHighestStepThatHoldsIsFound(t *testing.T) {
	for _, from := range []int{deepest - 1, -120, -3, 0, 40} {
		for edge := deepest - 1; edge <= 60; edge++ {
			found, err := highestStep(from, func(k int) (bool, error) {
				require.GreaterOrEqual(t, k, deepest)
				return k <= edge, nil
			})
			require.NoError(t, err)
			require.Equal(t, edge, found, "from %d", from)
		}
	}
}

// What judges a plan is not what its policy saw, and equal seeds give equal questions.
func TestQuestions(t *testing.T) {
	all, err := arenas()
	require.NoError(t, err)
	names := make(map[string]bool)
	for _, a := range all {
		require.False(t, names[a.name], a.name)
		names[a.name] = true
		load := a.guess / 20
		q, err := a.ask(load, 1, .1, nil)
		require.NoError(t, err, a.name)
		same, err := a.ask(load, 1, .1, nil)
		require.NoError(t, err)
		require.Equal(t, q.unseen.Describe().GetDigest(), same.unseen.Describe().GetDigest())
		require.NotEqual(t, q.snapshot.GetTraffic().GetDigest(), q.unseen.Describe().GetDigest(), a.name)
		total := 0.0
		for _, m := range q.snapshot.GetModels() {
			require.NotEmpty(t, m.GetName())
			total += m.GetRate()
		}
		require.InDelta(t, load, total, 1e-6, a.name)
		if a.trace == nil {
			require.InEpsilon(t, load, float64(len(q.unseen.Arrivals))/q.unseen.Length.Seconds(), .15, a.name)
		}
	}
}

// The second judge's profiles are off by 15% in both directions, others in each draw, and the question that the policy sees stays as it was.
func TestProfilesThatAreWrong(t *testing.T) {
	all, err := arenas()
	require.NoError(t, err)
	q, err := all[0].ask(1000, 1, .1, nil)
	require.NoError(t, err)
	given := proto.CloneOf(q.snapshot)
	var draws []string
	for draw := range profileDraws {
		w := q.wrong(draw)
		signs := ""
		for i, p := range w.judging.GetProfiles() {
			ratio := p.GetPoints()[0].GetLatencyUs().GetValue() / given.GetProfiles()[i].GetPoints()[0].GetLatencyUs().GetValue()
			require.InDelta(t, profileError, math.Abs(ratio-1), 1e-9)
			for k, at := range p.GetPoints() {
				require.InEpsilon(t, ratio*given.GetProfiles()[i].GetPoints()[k].GetLatencyUs().GetValue(), at.GetLatencyUs().GetValue(), 1e-9, "all points of a profile are off alike")
				require.InEpsilon(t, ratio*given.GetProfiles()[i].GetPoints()[k].GetLatencyUpperUs(), at.GetLatencyUpperUs(), 1e-9)
			}
			signs += map[bool]string{true: "+", false: "-"}[ratio > 1]
		}
		draws = append(draws, signs)
	}
	require.True(t, proto.Equal(given, q.snapshot))
	t.Log(draws)
	require.Contains(t, strings.Join(draws, ""), "+")
	require.Contains(t, strings.Join(draws, ""), "-")
	require.NotEqual(t, draws[0], draws[1])
}

func TestClusters(t *testing.T) {
	s := nineOnFour()
	doubled(s)
	require.Len(t, s.GetNodes()[0].GetGpus(), 8)
	ids := make(map[string]bool)
	for i, g := range s.GetNodes()[0].GetGpus() {
		require.EqualValues(t, i, g.GetIndex())
		require.False(t, ids[g.GetId()])
		ids[g.GetId()] = true
	}
	first(3)(s)
	require.Len(t, s.GetNodes()[0].GetGpus(), 3)
}

// The generated trace is one in Azure's format, and its functions are dealt out one by one.
func TestAzureIsDealtOut(t *testing.T) {
	by, err := roundRobin(45)(7)
	require.NoError(t, err)
	require.Len(t, by, len(twenty))
	require.Len(t, by[twenty[0].name], 3)
	require.Len(t, by[twenty[5].name], 2)
	triggers := make(map[string]int)
	for _, functions := range by {
		for _, c := range functions {
			require.Len(t, c.PerMinute, pastMinutes+seenMinutes+unseenMinutes)
			triggers[c.Trigger]++
		}
	}
	require.Len(t, triggers, 3)
}

// Promises are never above what comes; predictions count where a policy makes them.
func TestCountedOn(t *testing.T) {
	s := &policy.Snapshot{Models: []*policy.Model{{Name: "a", Rate: 10}, {Name: "b", Rate: 20}}}
	p := &policy.Plan{Partitions: []*policy.Partition{{Instances: []*policy.Instance{{Model: "a", Rate: 8}, {Model: "b", Rate: 15}}}, {Instances: []*policy.Instance{{Model: "b", Rate: 15}}}}}
	require.InDelta(t, 28, countedOn(s, p), 1e-9)
	p.Predictions = []*policy.Prediction{{Model: "a", Goodput: 9}}
	require.InDelta(t, 9, countedOn(s, p), 1e-9)
}

// What INFaaS and USHER print of cases that can be checked by hand comes out of the policies.
func TestReproducePlacement(t *testing.T) {
	for _, part := range []string{"infaas.table3", "usher.fig"} {
		b, _ := tiny(part)
		r := &figure.Report{File: "reproduce-placement", Command: "make reproduce"}
		require.NoError(t, b.reproducePlacement(t.Context(), r))
		require.NoError(t, r.Validate())
		for name, want := range map[string]float64{
			"placement.infaas.table3.qps1000_slo300.exact.cost": 22, "placement.usher.fig3b.memory": 61.67, "placement.usher.fig3c.gpus": 2, "placement.usher.fig7.paired.gpus": 2,
		} {
			if v, ok := figuresOf(r)[name]; ok {
				require.InDelta(t, want, v, .01, name)
			}
		}
	}
}
