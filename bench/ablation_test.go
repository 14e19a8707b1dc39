// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

func TestAblateOneRule(t *testing.T) {
	b, out := tiny("ablation.size")
	b.rounds = 1
	r := &figure.Report{File: "ablation", Command: "make bench BENCH=ablation"}
	require.NoError(t, b.ablation(t.Context(), r))
	require.Len(t, r.Figures, 3)
	require.Equal(t, "ablation.size.mean", r.Figures[0].Name)
	require.Greater(t, r.Figures[0].Value, .5)
	require.Contains(t, out.String(), "size")
	require.NoError(t, r.Validate())

	b, _ = tiny("ablation.dash")
	require.ErrorContains(t, b.ablation(t.Context(), r), "ablation.dash")
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
		{Name: "ablation.quiet.mean", Value: 1.0423}, {Name: "ablation.quiet.most", Value: 2}, {Name: "ablation.quiet.least", Value: .9},
	}}
	table := "| without | mean | most | least |\n|---|---|---|---|\n| *quiet* | 1.042 | 2.000 | 0.900 |\n"
	page, err := withTable("before\n"+tableBegins+"old\n"+tableEnds+"\nafter\n", r)
	require.NoError(t, err)
	require.Equal(t, "before\n"+tableBegins+table+tableEnds+"\nafter\n", page)
	again, err := withTable(page, r)
	require.NoError(t, err)
	require.Equal(t, page, again)
	_, err = withTable(strings.ReplaceAll(page, tableEnds, ""), r)
	require.ErrorContains(t, err, "no place")
}
