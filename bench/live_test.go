// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestFreeInstancesAreScreenedAlone: --only 8on4.triton.node_free, which docs/comparison.md names, has the present best setting first, and nothing of Conch.
func TestFreeInstancesAreScreenedAlone(t *testing.T) {
	s := eightOnFour()
	b := &bench{only: "8on4.triton.node_free"}
	var all []string
	for _, row := range append(s.settings(zoo.Profile{SLO: 25 * time.Millisecond}), s.conchs(zoo.Profile{SLO: 1})...) {
		if b.is(s, row) {
			for _, setup := range row.setups {
				all = append(all, setup.String())
			}
		}
	}
	require.Len(t, all, 19)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(all))), 19)
	require.Equal(t, rig.TritonSetup{Node: rig.NodeFree, DynamicBatching: zoo.DynamicBatching{MaxQueueDelay: 37500 * time.Microsecond}}.String(), all[0])
	for _, setup := range all {
		require.Contains(t, setup, string(rig.NodeFree))
	}
}

// TestEveryRowHasAFigure: names are good and the ratios compare what they say.
func TestEveryRowHasAFigure(t *testing.T) {
	for _, s := range []liveScenario{oneOnFour(), eightOnFour()} {
		r := &figure.Report{File: "live-" + s.name}
		for _, row := range s.settings(zoo.Profile{SLO: 1}) {
			r.Add("live."+s.name+"."+row.name+".screened", 1, "req/s", row.setups[0].String())
			require.Equal(t, "Triton", row.setups[0].System())
		}
		all := map[string]*standings{
			nodeRow: {best: rig.TritonSetup{Node: rig.NodeBound}, held: []float64{100, 110}}, eachRow: {best: rig.TritonSetup{}, held: []float64{90, 80}},
		}
		for i, row := range s.conchs(zoo.Profile{SLO: 1}) {
			all[row.name] = &standings{row: row, best: row.setups[0], held: []float64{float64(200 + 10*i), float64(210 + 10*i)}}
		}
		s.ratios(r, all)
		require.NoError(t, r.Validate())
		values := map[string]figure.Figure{}
		for _, f := range r.Figures {
			values[f.Name] = f
		}
		at := func(name string) float64 { return values["live."+s.name+"."+name].Value }
		require.Equal(t, 2, values["live."+s.name+".goodput_ratio"].Runs)
		require.InDelta(t, (2.4+250./110)/2, at("goodput_ratio"), 1e-9, "over the better of the two")
		require.InDelta(t, (240./90+250./80)/2, at("to_each"), 1e-9)
		require.InDelta(t, (2.1+2.)/2, at("pooling_part"), 1e-9, "eager with drop none is the better here")
		require.InDelta(t, (230./210+240./220)/2, at("drop_part"), 1e-9)
		require.InDelta(t, (240./230+250./240)/2, at("deferral_part"), 1e-9)
		require.InDelta(t, (2.5+260./110)/2, at("attached_to_node"), 1e-9)
		require.IsType(t, rig.ConchSetup{}, all[conchRow].best)
	}
}

// TestOverlapHasTheBestSettingsWithoutIt: what is called Triton where executions overlap has the settings that are the best of all where they do not.
func TestOverlapHasTheBestSettingsWithoutIt(t *testing.T) {
	reports, err := figure.Read(filepath.Join("..", "results"))
	require.NoError(t, err)
	cases, err := zoo.Cases()
	require.NoError(t, err)
	for _, row := range overlapTritons(cases[0].Profile) {
		best := byNameOf(reports)["live.8on4."+row.name+".goodput"].Note
		require.True(t, slices.ContainsFunc(row.setups, func(s rig.Setup) bool { return strings.HasSuffix(best, ": "+s.String()) }), "%s: %s", row.name, best)
	}
}

// TestPublishedMixesWereAskedAboutFirst: what is published of a load was measured after the answer of advise that is published beside it.
func TestPublishedMixesWereAskedAboutFirst(t *testing.T) {
	reports, err := figure.Read(filepath.Join("..", "results"))
	require.NoError(t, err)
	when := map[string]*figure.Report{}
	for _, r := range reports {
		when[r.File] = r
	}
	for i, set := range mixSets {
		require.Equal(t, i > 0, set.from > 0 && set.from == mixSets[max(0, i-1)].to)
		said, measured := when[set.name("advise")], when[set.name("mix")]
		if measured == nil {
			continue
		}
		require.NotNil(t, said)
		require.Equal(t, said.When.UTC().Format(time.RFC3339), measured.Versions["advice"], set.name("mix"))
		require.True(t, said.When.Before(measured.When))
	}
}

// TestMixesAreOfDifferentModels: ten loads of eight models each, different from each other, with times that four GPUs need for some 120 requests a second.
func TestMixesAreOfDifferentModels(t *testing.T) {
	seen := map[string]bool{}
	for number := range mixSets[len(mixSets)-1].to {
		m, err := drawMix(number)
		require.NoError(t, err)
		require.Len(t, m.names, mixModels)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(m.names))), mixModels)
		require.GreaterOrEqual(t, m.stretch, float64(stretch))
		key := strings.Join(m.names, " ")
		require.False(t, seen[key])
		seen[key] = true

		arrivals, err := m.arrivals(mixRate, 1, 100*time.Second)
		require.NoError(t, err)
		require.InEpsilon(t, 100*mixRate, len(arrivals), .15)
		counts := make([]int, mixModels)
		for i, a := range arrivals {
			counts[a.Model]++
			require.True(t, i == 0 || arrivals[i-1].At <= a.At)
		}
		require.Greater(t, counts[0], 3*counts[mixModels-1], "the first is asked for most")
	}
}
