// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

func TestAblateOneRule(t *testing.T) {
	b, out := tiny("ablation.stagger.inception1")
	r := &figure.Report{File: "ablation", Command: "make bench BENCH=ablation"}
	require.NoError(t, b.ablation(t.Context(), r))
	require.Len(t, r.Figures, 1)
	require.Equal(t, "ablation.stagger.inception1.poisson.equal.tight.gpus8.ratio", r.Figures[0].Name)
	require.InDelta(t, 1, r.Figures[0].Value, .2)
	require.Contains(t, out.String(), "stagger  inception1.poisson.equal.tight.gpus8")
	require.NoError(t, r.Validate())

	b, _ = tiny("ablation.dash")
	require.ErrorContains(t, b.ablation(t.Context(), r), "ablation.dash")
}

// TestEveryPartIsTakenAway: every rule of adaptive has three loads and more, and a load that several rules share is measured once with all of
// them.
func TestEveryPartIsTakenAway(t *testing.T) {
	b, _ := tiny("")
	all, err := b.ablations()
	require.NoError(t, err)
	loads, whole := map[string]int{}, map[string]*cell{}
	for _, one := range all {
		loads[one.name]++
		if c := whole[one.load.name()]; c != nil {
			require.Same(t, c, one.with)
		}
		whole[one.load.name()] = one.with
		require.Empty(t, one.with.scenario.Dispatch.Parameters)
		require.NotEqual(t, one.with.scenario.Dispatch, one.without.scenario.Dispatch)
	}
	for _, r := range append(queue.AdaptiveRules(), "reserve.window", "reserve.prefix") {
		require.GreaterOrEqual(t, loads[r], 3, r)
		require.LessOrEqual(t, loads[r], 6, r)
		delete(loads, r)
	}
	require.Empty(t, loads)
}

// TestTheQueuesPageHasTheFigures holds README.md of the queue in step with results/ablation.json.
func TestTheQueuesPageHasTheFigures(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	page, err := os.ReadFile("../sidecar/dispatch/queue/README.md")
	require.NoError(t, err)
	for _, r := range reports {
		if r.File != "ablation" {
			continue
		}
		want, err := withTable(string(page), r)
		require.NoError(t, err)
		require.Equal(t, want, string(page), "run `make results`")
		return
	}
	require.Fail(t, "there is no results/ablation.json", "run `make bench BENCH=ablation`")
}

func TestTableOfRules(t *testing.T) {
	r := &figure.Report{Figures: []figure.Figure{
		{Name: "ablation.quiet.a100.poisson.equal.tight.gpus2.ratio", Value: 1.0423},
		{Name: "ablation.quiet.weak.poisson.equal.tight.gpus2.ratio", Value: .9},
		{Name: "ablation.reserve.window.a100.poisson.equal.tight.gpus2.ratio", Value: 2},
	}}
	table := "| without | goodput with it over without it |\n|---|---|\n" +
		"| *quiet* | `a100.poisson.equal.tight.gpus2` 1.042, `weak.poisson.equal.tight.gpus2` 0.900 |\n" +
		"| *reserve.window* | `a100.poisson.equal.tight.gpus2` 2.000 |\n"
	page, err := withTable("before\n"+tableBegins+"old\n"+tableEnds+"\nafter\n", r)
	require.NoError(t, err)
	require.Equal(t, "before\n"+tableBegins+table+tableEnds+"\nafter\n", page)
	again, err := withTable(page, r)
	require.NoError(t, err)
	require.Equal(t, page, again)
	_, err = withTable(strings.ReplaceAll(page, tableEnds, ""), r)
	require.ErrorContains(t, err, "no place")
}
