// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
)

func found(rates ...float64) *cell {
	c := &cell{found: &sim.Found{}}
	for _, r := range rates {
		c.found.All = append(c.found.All, sim.Highest{Rate: r})
	}
	return c
}

func TestADuelIsFoughtSeedBySeed(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, other  *cell
		ratio         float64
		behind, ahead bool
	}{
		{"seeds that differ more than the disciplines", found(100, 150, 80), found(99, 148.5, 79.2), 1.0101, false, true},
		{"below, whatever the seed", found(97, 145.5, 77.6), found(100, 150, 80), .97, true, false},
		{"open", found(100, 100, 100), found(104, 97, 102), .9905, false, false},
		{"as far as both have seeds", found(100, 150, 80), found(99), 1.0101, false, true},
	} {
		d := against(c.first, c.other)
		require.InDelta(t, c.ratio, d.ratio, 1e-4, c.name)
		require.Equal(t, c.behind, d.behind(), c.name)
		require.Equal(t, c.ahead, d.ahead(), c.name)
	}
	brief := found(200)
	brief.requests = -1
	require.InDelta(t, .97, closest([]*cell{found(97, 97), brief, found(100, 100), brief}).ratio, 1e-9, "what was only looked at shortly may be found too high")
	require.InDelta(t, .97, closest([]*cell{found(97, 97), found(50, 50), found(100, 100), found(98, 98)}).ratio, 1e-9)
}

// TestWhatIsOpenGetsMoreSeeds: two that differ by chance have all the seeds that there are, those far behind the first three.
func TestWhatIsOpenGetsMoreSeeds(t *testing.T) {
	b, _ := tiny("a100.gamma30.zipf.tight.gpus2")
	columns, err := b.columns()
	require.NoError(t, err)
	c := columns[0]
	var line []*cell
	for _, of := range []struct{ name, discipline string }{{"first", "eager"}, {"alike", "eager"}, {"far behind", "duty-cycle"}} {
		line = append(line, &cell{
			name: of.name, scenario: c.scenario(rule(of.discipline, "", nil)), guess: .7 * c.bound, overall: true, requests: 2000, tolerance: .01,
		})
	}
	line[1].skip = 10 // the same discipline with other arrivals
	require.NoError(t, b.search(t.Context(), line, moreSeeds))
	require.NoError(t, b.settle(t.Context(), [][]*cell{line}))
	d := closest(line)
	require.Equal(t, "alike", d.other.name)
	require.True(t, d.ahead() || d.behind() || d.seeds == mostSeeds, "%v", d)
	require.Greater(t, d.seeds, moreSeeds)
	require.Len(t, line[2].found.All, moreSeeds)
	longer := &cell{name: "again", scenario: line[0].scenario, guess: line[0].found.All[0].Rate, overall: true, requests: 2000, tolerance: .01, skip: 3}
	require.NoError(t, b.search(t.Context(), []*cell{longer}, 1))
	require.InEpsilon(t, longer.found.Rate, line[0].found.All[3].Rate, .05, "the fourth seed is the fourth, not the first again")
}
