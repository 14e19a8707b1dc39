// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
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
	f := figuresOf(r)
	for _, l := range []string{"qps50", "qps100"} {
		for name := range abacusContestants() {
			require.LessOrEqual(t, f["abacus."+l+"."+name+".violations"], 1.)
			require.Positive(t, f["abacus."+l+"."+name+".p99_of_target"])
		}
		require.GreaterOrEqual(t, f["abacus."+l+".asked_per_group"], 1.)
		require.Equal(t, f["abacus."+l+".fcfs.in_time"], f["abacus."+l+".edf.in_time"], "with one target for all, the order of deadlines is that of arrival")
	}
	// The network overlaps nothing but the fixed millisecond: two resnet50 and vgg16 together take 26 ms, one after the other 27.
	require.InDelta(t, 1, f["abacus.pairs.resnet50_vgg16.p99_of_fcfs"], .5)
	papers := 0
	for _, f := range r.Figures {
		if strings.Contains(f.Note, "paper ") && strings.Contains(f.Note, "ratio") {
			papers++
		}
	}
	require.Equal(t, 24, papers, "three baselines in four comparisons, with the features of training and as run")
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
	rows, err := b.pairsOfAbacus()
	require.NoError(t, err)
	for _, row := range rows {
		if row.figure != "abacus.qps50.violations_reduction.fcfs" {
			continue
		}
		v, err := row.run(t.Context(), 3)
		require.NoError(t, err)
		share := map[string]float64{}
		for _, other := range rows {
			if name := other.figure; name == "abacus.qps50.fcfs.violations" || name == "abacus.qps50.abacus.violations" {
				share[name], err = other.run(t.Context(), 3)
				require.NoError(t, err)
			}
		}
		require.InDelta(t, 100*(1-share["abacus.qps50.abacus.violations"]/share["abacus.qps50.fcfs.violations"]), v, 1e-9)
		return
	}
	t.Fatal("there is no such row")
}
