// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
)

// Divided, every model has one owner, every GPU has one, and no owner is without.
func TestModelsAndGPUsAreDivided(t *testing.T) {
	for number := range drawnOwners {
		load := drawOwned(number)
		for i, parts := range load.divided {
			require.Len(t, parts, ownerParts[i], load.name)
			var models []string
			gpus, weight := 0, 0.
			for _, p := range parts {
				require.NotEmpty(t, p.cell.scenario.Models, p.cell.name)
				require.Positive(t, p.cell.scenario.GPUs[0].Count, p.cell.name)
				for _, m := range p.cell.scenario.Models {
					models = append(models, m.Name)
				}
				gpus += p.cell.scenario.GPUs[0].Count
				weight += p.weight
			}
			var want []string
			for _, m := range load.whole.scenario.Models {
				want = append(want, m.Name)
			}
			slices.Sort(models)
			slices.Sort(want)
			require.Equal(t, want, models, load.name)
			require.Equal(t, load.gpus, gpus, load.name)
			require.InDelta(t, 1, weight, 1e-9, load.name)
		}
	}
}

// The owner that holds its part no more ends it for all.
func TestWhatSeveralOwnersHold(t *testing.T) {
	found := func(rates ...float64) *sim.Found {
		f := &sim.Found{}
		for _, r := range rates {
			f.All = append(f.All, sim.Highest{Rate: r})
		}
		return f
	}
	load := &ownedLoad{whole: &cell{found: found(100, 200)}}
	load.divided[0] = []ownedPart{{.25, &cell{found: found(25, 40)}}, {.75, &cell{found: found(60, 150)}}}
	require.InDelta(t, .8, load.kept(0), 1e-9, "80 of 100, then 160 of 200")
}
