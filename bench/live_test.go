// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

func TestPlacementsDealModelsOutEvenly(t *testing.T) {
	s := liveScenario{models: 8, gpus: 4}
	require.Equal(t, [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, s.placement(1))
	require.Equal(t, [][]int{{0, 2, 4, 6}, {1, 3, 5, 7}, {0, 2, 4, 6}, {1, 3, 5, 7}}, s.placement(2))
}

// TestEveryRowHasAFigure: names are good and the ratios compare what they say.
func TestEveryRowHasAFigure(t *testing.T) {
	for _, s := range liveScenarios() {
		all := map[string]*standings{}
		r := &figure.Report{File: "live"}
		for i, row := range s.rows(zoo.Profile{SLO: 1}) {
			all[row.name] = &standings{row: row, best: row.setups[0], held: []float64{float64(100 * (i + 1))}}
			r.AddRuns("live."+s.name+"."+row.name+".goodput", all[row.name].held, "req/s", "")
		}
		all[conchRow].held = append(all[conchRow].held, 1000)
		best := all["triton.queue_timeout"]
		best.held = append(best.held, 400)
		s.ratios(r, all, best)
		require.NoError(t, r.Validate())
		values := map[string]figure.Figure{}
		for _, f := range r.Figures {
			values[f.Name] = f
		}
		conch := all[conchRow].held[0]
		ratio := values["live."+s.name+".goodput_ratio"]
		require.Equal(t, 2, ratio.Runs)
		require.InDelta(t, (conch/300+2.5)/2, ratio.Value, 1e-9)
		require.InDelta(t, conch/100, values["live."+s.name+".to_dynamic_batching"].Value, 1e-9)
		pooled := all["conch.timeout"].held[0] // the better of the two here
		require.InDelta(t, pooled/100, values["live."+s.name+".pooling_ratio"].Value, 1e-9)
		require.InDelta(t, conch/pooled, values["live."+s.name+".deadline_ratio"].Value, 1e-9)
		require.Equal(t, "Triton", best.best.System())
		require.IsType(t, rig.ConchSetup{}, all[conchRow].best)
	}
}
