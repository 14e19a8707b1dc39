// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

func adaptiveWithout(t *testing.T, rules string) queue.Discipline {
	t.Helper()
	d, err := queue.NewDiscipline("adaptive", map[string]string{"without": rules})
	require.NoError(t, err)
	return d
}

func TestRulesAreTakenAwayByName(t *testing.T) {
	all, err := queue.NewDiscipline("adaptive", nil)
	require.NoError(t, err)
	require.Equal(t, all, adaptiveWithout(t, ""), "nothing is taken away")
	require.NotEqual(t, all, adaptiveWithout(t, "quiet"))
	require.Equal(t, adaptiveWithout(t, "quiet,brief"), adaptiveWithout(t, " brief , quiet"))
	for _, c := range []struct{ without, says string }{
		{"quite", `without="quite": rule "quite": unknown name; there are stagger, light, `},
		{"quiet,", `rule "": unknown name`},
		{"quiet brief", `rule "quiet brief": unknown name`},
		{"quiet,brief,quiet", `rule "quiet" twice`},
	} {
		_, err := queue.NewDiscipline("adaptive", map[string]string{"without": c.without})
		require.ErrorContains(t, err, c.says)
	}
	_, err = queue.NewDiscipline("adaptive", map[string]string{"without": "quite"})
	require.ErrorIs(t, err, queue.ErrUnknown)
}

// TestEveryRuleDecides shows for each rule a decision that is another without it,
// and that no other rule makes that decision.
func TestEveryRuleDecides(t *testing.T) {
	const ms = 1e6
	weak := queue.Linear(7.353*ms, .222*ms, 64)
	heavy := queue.Linear(23*ms, 15*ms, 64)
	shown := map[string]bool{}
	check := func(rule string, with, without int, others []string, decide func(queue.Discipline) int) {
		shown[rule] = true
		require.Equal(t, with, decide(adaptiveWithout(t, "")), rule)
		for _, r := range queue.AdaptiveRules() {
			switch {
			case r == rule:
				require.Equal(t, without, decide(adaptiveWithout(t, r)), "without %s", r)
			case !slices.Contains(others, r):
				require.Equal(t, with, decide(adaptiveWithout(t, r)), "%s, without %s", rule, r)
			}
		}
	}
	// When a batch of 3 rows may start that would at 100 under deferred, at 50, with
	// l(reach) = 20.
	for _, c := range []struct {
		rule          string
		p             queue.Pressure
		with, without int
		others        []string // rules that have a part in it
	}{
		{"stagger", queue.Pressure{Usable: 8, Free: 1, Worth: 4, Need: 8, AllNeed: 8, Left: 2}, 96, 101, nil},
		{"light", queue.Pressure{Usable: 8, Free: 1, Worth: 4, Need: 1, AllNeed: 8, Left: 4}, 50, 101, nil},
		{"worth", queue.Pressure{Usable: 8, Free: 1, Worth: 3, Need: 8, AllNeed: 8, Left: 4}, 50, 101, nil},
		{"crowd", queue.Pressure{Usable: 8, Free: 1, Worth: 4, Need: 4, AllNeed: 8, Crowd: 4, Left: 4}, 91, 101, nil},
		{"haste", queue.Pressure{Usable: 8, Free: 1, Worth: 4, Need: 8, AllNeed: 8, Left: 4, Dispersion: 5}, 95, 101, nil},
		{"quiet", queue.Pressure{Usable: 8, Free: 8, Dispersion: 20, Newest: 50, Alone: 100, Saved: 1}, 55, 50, nil},
		{"scarce", queue.Pressure{Usable: 2, Free: 2, Dispersion: 3, Newest: 50, Alone: 100, Saved: 1}, 55, 52, []string{"quiet"}},
	} {
		check(c.rule, c.with, c.without, c.others, func(d queue.Discipline) int {
			c.p.Reach = 20
			return int(d.(queue.Hurrier).Hurry(50, &queue.Candidate{Rows: 3, Frontrun: 100, Latest: 101}, c.p))
		})
	}
	// How many rows a batch has at most, of 64.
	for _, c := range []struct {
		rule          string
		d             queue.Demand
		with, without int
		others        []string
	}{
		{"size", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 1, Load: .9, Around: 40 * ms, Partitions: 8}, 3, 64, nil},
		{"many", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 10, Load: .9, Around: 40 * ms, Partitions: 64}, 2, 1, []string{"size"}},
		{"burst", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 100, Load: .9, Around: 40 * ms, Partitions: 8}, 64, 1, nil},
		{"brief", queue.Demand{Table: heavy, SLO: 420 * ms, Dispersion: 10, Load: .9, Around: 60 * ms, Partitions: 8}, 1, 4, []string{"size"}},
		{"surge", queue.Demand{Table: heavy, SLO: 420 * ms, Dispersion: 10, Load: .9, Around: 60 * ms, Partitions: 64}, 6, 64, []string{"size", "many"}},
	} {
		check(c.rule, c.with, c.without, c.others, func(d queue.Discipline) int {
			c.d.MaxBatch, c.d.Rate = 64, 100
			return d.(queue.Sizer).Most(c.d)
		})
	}
	for _, r := range queue.AdaptiveRules() {
		require.True(t, shown[r], r)
	}
}
