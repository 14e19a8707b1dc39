// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/sim/segment"
)

// handMadeAbacus has three models and a network that adds up operators: it stands in for what is published, so that what is made of it can be checked.
const handMadeAbacus = "../sidecar/sim/segment/testdata/experiment"

// TestAbacusRows: every row becomes a figure, those that the paper has a number of beside it, and the remark cites them.
func TestAbacusRows(t *testing.T) {
	b, out := tiny("")
	b.abacus = handMadeAbacus
	r := &figure.Report{File: "reproduce-abacus", Command: "make reproduce ABACUS=DIR"}
	require.NoError(t, b.reproduceAbacus(t.Context(), r))
	require.NoError(t, r.Validate())
	require.Contains(t, out.String(), "23.1")
	require.Len(t, r.Figures, 9)
	papers := 0
	for _, f := range r.Figures {
		if strings.Contains(f.Note, "paper ") && strings.Contains(f.Note, "ratio") {
			papers++
		}
	}
	require.Equal(t, 6, papers, "two baselines, at both loads, and one of them with the features as run")
}

// TestAbacusWithoutItsPredictor: the error of a run without the predictor's directory names what is missing.
func TestAbacusWithoutItsPredictor(t *testing.T) {
	b, _ := tiny("")
	require.ErrorContains(t, b.reproduceAbacus(t.Context(), &figure.Report{}), "--abacus names no directory")
	b.abacus = t.TempDir()
	require.ErrorContains(t, b.reproduceAbacus(t.Context(), &figure.Report{}), "experiment_config.json")
	b.abacus, b.only = handMadeAbacus, "fig99"
	require.ErrorContains(t, b.reproduceAbacus(t.Context(), &figure.Report{}), "fig99")
}

// TestGainsAndReductions by hand.
func TestGainsAndReductions(t *testing.T) {
	b, _ := tiny("")
	b.abacus = handMadeAbacus
	x, err := segment.ReadExperiment(os.DirFS(handMadeAbacus))
	require.NoError(t, err)
	a := &abacus{x: x, queries: int(b.simulated(abacusQueries)), known: map[string]func() (abacusRuns, error){}}
	runs, err := a.runs(abacusLoad{"qps50", 50, x.QoS}, 3)
	require.NoError(t, err)
	late := func(name string) (sum float64) {
		for _, r := range runs[name] {
			sum += r.Outcomes.Violations()
		}
		return sum
	}
	rows, err := b.pairsOfAbacus()
	require.NoError(t, err)
	i := slices.IndexFunc(rows, func(r *row) bool { return r.figure == "abacus.qps50.violations_reduction.fcfs" })
	v, err := rows[i].run(t.Context(), 3)
	require.NoError(t, err)
	require.InDelta(t, 100*(1-late("abacus")/late("fcfs")), v, 1e-9)
}
