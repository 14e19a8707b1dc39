// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
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
		{"budget", "5140", []string{"budget.resnet50.target.goodput"}},
		{"fig6a", "fig6a", []string{"fig6a.beta15.eager_prefix.of_deferred"}},
		{"overload", "5650", []string{"overload.resnet50.deferred.offered10000.goodput", "idle.resnet50.adaptive.load25.share"}},
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

// TestTable1InPanels: its many workloads are no figures, what follows from them is.
func TestTable1InPanels(t *testing.T) {
	b, _ := tiny("")
	rows, err := b.synthetic()
	require.NoError(t, err)
	shown := 0
	for _, one := range rows {
		if !one.hidden {
			shown++
			require.Regexp(t, `^table1\.deferred_over_eager(_prefix)?\.`, one.figure)
		}
	}
	require.Equal(t, 14, shown)
	require.Len(t, rows, 14+2*(1+6*3)*3)
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
