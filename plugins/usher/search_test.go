// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usher

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// empty is a run on GPUs of the given kinds with nothing on them.
func empty(kinds []kind, each int) *run {
	r := &run{f: pack.New(&policy.Snapshot{}), set: &settings{classify: true, sort: true, heavy: 1.2, group: 4}, kinds: kinds, alike: map[like]*class{}}
	for k := range kinds {
		for range each {
			r.cheapest = append(r.cheapest, len(r.gpus))
			r.gpus = append(r.gpus, &gpu{kind: k, compute: 100, memory: 1})
		}
	}
	r.order()
	return r
}

// The three schedules of the paper's figure 3, each as the configuration that PLACEMENT is asked for.
func TestPlacementOfFigure3(t *testing.T) {
	// {BS, RD} by Mreq: at a batch of 8, and divided in two at a batch of 4.
	memory := [3][2]float64{{.70, .40}, {.65, .35}, {.40, .25}}
	for _, c := range []struct {
		divided     [3]int
		gpus        float64
		utilisation float64
	}{
		{[3]int{0, 0, 0}, 3, .5833}, {[3]int{1, 0, 0}, 3, .6166}, {[3]int{1, 1, 1}, 2, 1},
	} {
		r := empty([]kind{{gpuType: "X", cost: 1}}, 4)
		var choices []choice
		used := 0.0
		for i, d := range c.divided {
			o := &option{replicas: 1 + d, compute: .1, memory: memory[i][d], needs: []need{{fits: true, share: 10, memory: memory[i][d], goodput: 100}}}
			choices = append(choices, choice{&model{name: strconv.Itoa(i), workload: 100}, o})
			used += float64(o.replicas) * o.memory
		}
		p := r.place(1, choices)
		require.Zero(t, p.missing)
		require.InDelta(t, c.gpus, p.cost, 0, "GPUs with %v divided", c.divided)
		require.InDelta(t, c.utilisation, used/p.cost, 1e-4)
		for _, g := range r.gpus {
			require.Zero(t, g.group, "a trial leaves no trace")
			require.InDelta(t, 1, g.memory, 1e-9)
		}
	}
}

// Groups have as much compute as memory: the largest surplus of either is joined with the largest of the other.
func TestGroups(t *testing.T) {
	r := empty(nil, 0)
	r.set.group = 2
	var models []*model
	for i, surplus := range []float64{.5, .3, -.3, -.5} {
		models = append(models, &model{name: strconv.Itoa(i), compute: .6 + surplus, memory: .6, options: []option{{demand: 1}}})
	}
	groups := r.groups(models)
	require.Equal(t, []string{"0", "3"}, []string{groups[0][0].name, groups[0][1].name})
	require.Equal(t, []string{"1", "2"}, []string{groups[1][0].name, groups[1][1].name})
}

// The pruned search finds a placement that no other configuration beats, on one kind of GPU or two, on GPUs that are partly used, and where
// the load is more than there is.
func TestPrunedIsAsGoodAsExhaustive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []kind{{gpuType: "X", cost: 1}, {gpuType: "Y", cost: rapid.SampledFrom([]float64{1, 1.5, 3}).Draw(t, "cost")}}
		kinds = kinds[:rapid.IntRange(1, 2).Draw(t, "kinds")]
		each := rapid.IntRange(1, 4).Draw(t, "GPUs of a kind")
		var models []*model
		for i := range rapid.IntRange(1, 3).Draw(t, "models") {
			m := &model{name: strconv.Itoa(i), workload: rapid.Float64Range(10, 300).Draw(t, "workload")}
			for range rapid.IntRange(1, 5).Draw(t, "options") {
				o := option{replicas: rapid.IntRange(1, 4).Draw(t, "replicas"), demand: math.Inf(1)}
				most := 0.0
				for range kinds {
					n := need{
						fits: true, share: rapid.IntRange(5, 100).Draw(t, "share"), memory: rapid.Float64Range(.05, 1).Draw(t, "memory"),
						goodput: rapid.Float64Range(10, 200).Draw(t, "goodput"),
					}
					o.needs = append(o.needs, n)
					o.compute, o.memory = float64(n.share)/100, n.memory
					o.demand = min(o.demand, float64(o.replicas)*n.size())
					most = max(most, n.goodput)
				}
				o.lost = max(0, m.workload-float64(o.replicas)*most)
				m.options = append(m.options, o)
			}
			models = append(models, m)
		}
		find := func(exhaustive bool) *placement {
			r := empty(kinds, each)
			r.set.exhaustive = exhaustive
			// One GPU is in use by another group.
			r.gpus[0].group, r.gpus[0].compute, r.gpus[0].memory, r.opened = 9, 60, .5, []int{0}
			best, _ := r.search(t.Context(), 1, models, math.MaxUint64)
			return best
		}
		a, b := find(false), find(true)
		require.False(t, b.better(a), "exhaustive %+v\npruned %+v", b, a)
		require.False(t, a.better(b))
	})
}
