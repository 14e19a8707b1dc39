// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/builtin"
)

// grids are small models whose profile files say all that any policy asks for: latencies, compute and memory by share, L2 and bandwidth.
func grids(n int) rig.Models {
	var all []zoo.Model
	for i := range n {
		all = append(all, zoo.Model{
			Name:         string(rune('a' + i)),
			Profile:      zoo.Profile{GPUType: zoo.A100, Alpha: 200 * time.Microsecond, Beta: 2 * time.Millisecond, SLO: time.Second},
			MaxBatchSize: 8, Knee: 50, L2: .2, Bandwidth: .2, Mreq: .05, Declare: true,
		})
	}
	return rig.Emulated(all...)
}

// everyPair visits names so that each follows each of the others once, and ends where it began.
func everyPair(names []string) []string {
	var walk []string
	for i := range names {
		for _, other := range names[i+1:] {
			walk = append(walk, names[i], other)
		}
	}
	return append(walk, names[0])
}

func TestEveryPairIsEveryPair(t *testing.T) {
	names := builtin.Names()
	walk, seen := everyPair(names), map[[2]string]bool{}
	for i := range walk[1:] {
		seen[[2]string{walk[i], walk[i+1]}] = true
	}
	require.Len(t, seen, len(names)*(len(names)-1))
	require.Len(t, walk, len(seen)+1, "none twice")
}

// TestEveryPolicyInPlaceOfEveryOther has `tritonctl policy use` go through the built-in policies on real tritonservers under load, and each plan serve:
// once round, or, asked for as many swaps, from each to each other. No request is lost.
func TestEveryPolicyInPlaceOfEveryOther(t *testing.T) {
	t.Parallel()
	// static is the first: some of the others evaluate traffic, of which there is none yet.
	names := slices.Concat([]string{"static"}, slices.DeleteFunc(builtin.Names(), func(name string) bool { return name == "static" }))
	walk := append(slices.Clone(names), names[0])
	if swaps := rounds(t, "CONCH_POLICY_SWAPS", len(names)); swaps > len(names) {
		for walk = everyPair(names); len(walk) <= swaps; {
			walk = append(walk, everyPair(names)[1:]...)
		}
		walk = walk[:swaps+1]
	}
	models := grids(2)
	c := serve(t, rig.ConchOptions{Models: models, GPUs: 2, Settings: map[string]any{
		"mode":   "advise", // a plan serves when it is ordered
		"policy": map[string]any{"name": walk[0], "deadline": "1m", "evaluations": 16, "traffic": "1s"},
		// infaas chooses variants.
		"apps": map[string]any{"either": map[string]any{"accuracy": .6, "slo": "10s", "variants": []map[string]any{
			{"model": "a", "accuracy": .7, "costPerHour": 1}, {"model": "b", "accuracy": .8, "costPerHour": 2},
		}}},
	}})
	a := admin(t, c)
	load := ask(t, c.GRPC, 4, func() []string { return []string{"a", "b", "either"} })
	times := newSwitches(load)
	serving := func() string {
		p, err := a.Plan(t.Context())
		require.NoError(t, err)
		return layoutOf(t, p).String()
	}
	changed := 0
	for _, name := range walk[1:] {
		times.calm(t)
		before := serving()
		times.during(t, func() {
			use := []string{"policy", "use", name}
			if name == "infaas" {
				use = append(use, "--set", "gpu_share=50") // by default each instance has a GPU
			}
			for _, order := range [][]string{use, {"plan", "apply", "--yes"}} {
				out, code := tritonctl(t, c, order...)
				require.Zero(t, code, "%s: %s", name, out)
			}
			requireReady(t, a)
		})
		used, err := a.Policy(t.Context(), name)
		require.NoError(t, err)
		require.True(t, used.InUse, name)
		if after := serving(); after != before {
			t.Logf("%s: %s", name, after)
			changed++
		}
		load.requireNoneLost(t)
	}
	load.close(t)
	times.report(t, false, false)
	t.Logf("%d of %d swaps changed partitions", changed, len(walk)-1)
	require.Positive(t, changed)
}
