// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
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

// TestNothingTakenAwayBringsNothing: what is measured is the rule, not where a search begins.
func TestNothingTakenAwayBringsNothing(t *testing.T) {
	b, _ := tiny("")
	gains, err := b.gains(t.Context(), []part{{"nothing", func(*adaptive.Params) {}}})
	require.NoError(t, err)
	require.NotEmpty(t, gains[0])
	for _, g := range gains[0] {
		require.Equal(t, 1., g.ratio, g.load)
	}
}

func TestTableOfRules(t *testing.T) {
	r := &figure.Report{Figures: []figure.Figure{
		{Name: "ablation.quiet.mean", Value: 1.0423}, {Name: "ablation.quiet.most", Value: 2}, {Name: "ablation.quiet.least", Value: .9},
	}}
	require.Equal(t, "| without | mean | most | least |\n|---|---|---|---|\n| *quiet* | 1.042 | 2.000 | 0.900 |\n", ablationTable(byNameOf([]*figure.Report{r})))
}
