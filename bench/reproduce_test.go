// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/sim"
)

// TestReproduceComparesEveryRow measures the parts that are quick, on a twentieth of the time, and looks for their figures beside what is
// published.
func TestReproduceComparesEveryRow(t *testing.T) {
	for _, c := range []struct {
		part, shows string
		figures     []string
	}{
		{"table2", "5839", []string{
			"table2.resnet50.earliest_latest.goodput", "table2.inceptionresnetv2.flex.goodput", "table2.resnet50.deferred.median_batch_of_requests",
			"table2.inceptionresnetv2.clockwork_ahead.goodput", "table2.resnet50.duty_cycle_dealt_in_turn.goodput",
		}},
		{"budget", "5140", []string{"budget.resnet50.target.goodput", "budget.resnet50.deferred.offered6000.goodput"}},
		{"fig6a", "fig6a", []string{"fig6a.beta15.eager_prefix.of_deferred"}},
		{"overload", "5650", []string{"overload.resnet50.deferred.offered10000.goodput", "idle.resnet50.adaptive.load100.share"}},
		{"example", "2.25", []string{"example.deferred.first_start"}},
	} {
		b, out := tiny(c.part)
		r := &figure.Report{File: "reproduce", Command: "make reproduce"}
		require.NoError(t, b.reproduce(t.Context(), r))
		require.NoError(t, r.Validate())
		require.Contains(t, out.String(), c.shows)
		names := map[string]bool{}
		for _, f := range r.Figures {
			names[f.Name] = true
		}
		for _, name := range c.figures {
			require.Contains(t, names, name)
		}
	}
	b, _ := tiny("fig99")
	require.ErrorContains(t, b.reproduce(t.Context(), &figure.Report{}), "fig99")
}

// TestDrawsAreEven: each option of a column of table 1 comes as often as the others, and a seed is a sample.
func TestDrawsAreEven(t *testing.T) {
	all := draws(126, 1)
	require.Equal(t, all, draws(126, 1))
	require.NotEqual(t, all, draws(126, 2))
	for name, column := range map[string]struct {
		options int
		of      func(load) any
	}{
		"model": {6, func(l load) any { return l.model }}, "models": {6, func(l load) any { return l.models }}, "gpus": {7, func(l load) any { return l.gpus }},
		"slo": {5, func(l load) any { return l.slo }}, "shape": {6, func(l load) any { return l.shape }},
	} {
		count := map[any]int{}
		for _, l := range all {
			count[column.of(l)]++
		}
		require.Len(t, count, column.options, name)
		for option, n := range count {
			require.InDelta(t, float64(len(all))/float64(column.options), n, 1, "%s %v", name, option)
		}
	}
}

// TestTable1InPanels: its many workloads are no figures, what follows from them is.
func TestTable1InPanels(t *testing.T) {
	holds := func(rate float64) *cell { return &cell{name: "table1.x", found: &sim.Found{Rate: rate}} }
	workload := func(panel, model string, models int, deferred, eager, prefix float64) pair {
		return pair{load: load{model: model, models: models, gpus: 1, slo: 20, shape: 1}, panel: panel, cells: []*cell{holds(deferred), holds(eager), holds(prefix)}}
	}
	value := map[string][]float64{}
	for _, one := range panels([]pair{
		workload("", "BERT", 8, 90, 100, 90), workload("", "VGG16", 64, 96, 100, 120), workload("", "VGG16", 64, 160, 100, 100),
		workload("", "VGG16", 8, 80, 100, 100), workload("", "VGG16", 8, 80, 0, 100), workload("mixed", "", 35, 150, 100, 200),
	}) {
		if one.hidden {
			require.Equal(t, "table1.x", one.figure)
			continue
		}
		require.Regexp(t, `^table1\.deferred_over_eager(_prefix)?\.`, one.figure)
		value[strings.TrimPrefix(one.figure, "table1.deferred_over_")] = one.rest()
	}
	require.Equal(t, []float64{1.5}, value["eager.mixed"])
	require.Equal(t, []float64{.75}, value["eager_prefix.mixed"])
	require.Equal(t, []float64{.9}, value["eager.bert"])
	require.Equal(t, []float64{.9, .8}, value["eager.models8"], "where eager holds nothing there is no ratio")
	require.Equal(t, []float64{.96, 1.6}, value["eager.models64"])
	require.Equal(t, []float64{.5}, value["eager.share_from_95_percent"])
	require.Equal(t, []float64{.75}, value["eager.share_from_90_percent"])
	require.Equal(t, []float64{.25}, value["eager.share_from_half_more"])
	require.Equal(t, []float64{.4}, value["eager_prefix.share_from_95_percent"])
	require.Empty(t, value["eager.gamma1"])
}

// TestTable1SearchesWhatItShows: every workload under deferred, eager and eager with prefix drop.
func TestTable1SearchesWhatItShows(t *testing.T) {
	b, _ := tiny("")
	rows, err := b.synthetic()
	require.NoError(t, err)
	bursts, err := b.bursts()
	require.NoError(t, err)
	searched := map[string]int{}
	for _, one := range append(rows, bursts...) {
		if one.cell != nil {
			require.True(t, one.hidden, one.figure)
			searched[strings.Split(one.figure, ".")[1]]++
		}
	}
	require.Equal(t, 3, searched["drawn5"])
	require.Equal(t, 3*4*3, searched["mixed"])
	require.Equal(t, 3*2*3, searched["densenet121_slo30"])
	require.Equal(t, 5+2*8, searched["bursts"])
}

// TestExampleOfSection33 is what Symphony's text says of figures 4 and 5.
func TestExampleOfSection33(t *testing.T) {
	rows, err := missing()
	require.NoError(t, err)
	value := map[string]float64{}
	for _, one := range rows {
		value[one.figure] = one.runs[0]
	}
	require.Equal(t, 4., value["example.deferred.first_batch"])
	require.Equal(t, 2.25, value["example.deferred.first_start"])
	require.Less(t, value["example.deferred.dropped"], value["example.eager.dropped"])
}
