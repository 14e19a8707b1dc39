// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/plugins/policy"
)

// livePolicies meet in the scenes of placementsLive: ours, and of the rivals those that hold most of these scenes in the simulator.
func livePolicies() []placement {
	return slices.DeleteFunc(rivals(), func(p placement) bool { return !slices.Contains([]string{ours, simplest, "halves", "usher"}, p.name) })
}

// judgedScenes are three scenes at a load that some policies hold in the simulator and others do not: where all do, nothing can tell them apart. Each
// policy plans for that load.
func judgedScenes() []liveScene {
	var all []liveScene
	for _, s := range liveScenes() {
		times, judged := map[string]float64{"gpulet": 2, "usher": 2.2, ours: 2}[s.policy]
		if !judged {
			continue
		}
		s.name = map[string]string{"gpulet": "four_models", "usher": "four_sizes", ours: "tight_heavy"}[s.policy]
		s.rates, s.parameters = maps.Clone(s.rates), nil
		for name := range s.rates {
			s.rates[name] *= times
		}
		all = append(all, s)
	}
	return all
}

// placementsLive judges plans by real tritonservers, and not by the simulator that conch asked for them: each policy plans live for the same load, which
// is then offered to its plan, the same arrivals to all of them. Beside it stands what the simulator makes of the plans and arrivals.
func (b *bench) placementsLive(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench BENCH=placements-live`, or say --tritonserver")
	}
	r.Emulated = fmt.Sprintf("GPUs, as in policies-live: executions sleep, for %g times latencies that are ours (bench/policies.go), slowed by the other partitions of their GPU", b.stretch)
	measured := false
	for _, s := range judgedScenes() {
		name := "placements_live." + s.name
		if !strings.Contains(name, b.only) {
			continue
		}
		measured = true
		s.stretch = b.stretch
		live, simulated := map[string][]float64{}, map[string][]float64{}
		for round := range b.roundsOr(1) {
			seed := b.seed + uint64(round) //nolint:gosec // small
			for _, p := range livePolicies() {
				s.policy, s.parameters = p.policy, p.parameters
				who := p.name
				var c comparison
				if err := b.served(ctx, s, seed, func(conch *rig.Conch, base comparison, plan *policy.Plan) (err error) {
					c, err = b.playAt(ctx, conch, s, base, plan, s.name+", "+who, 1, seed+1000)
					return err
				}); err != nil {
					return fmt.Errorf("%s, %s: %w", name, who, err)
				}
				live[who], simulated[who] = append(live[who], goodput(c.live)), append(simulated[who], goodput(c.simulated))
				b.say(fmt.Sprintf("%s, %s: goodput %.0f req/s live, %.0f simulated%s", s.name, who, goodput(c.live), goodput(c.simulated), c.disturbed()))
			}
		}
		for _, p := range livePolicies() {
			r.AddRuns(name+"."+p.name+".goodput", live[p.name], "req/s", "live, of its plan for this load")
			r.AddRuns(name+"."+p.name+".simulated_goodput", simulated[p.name], "req/s", "the same plan and arrivals in the simulator")
		}
		r.Add(name+".over_best", overBest(live), "ratio", "goodput of conch over the best of the others, live")
		r.Add(name+".simulated_over_best", overBest(simulated), "ratio", "the same in the simulator")
	}
	if !measured {
		return fmt.Errorf("placements-live: no scene has %s in its name", b.only)
	}
	return nil
}

// overBest is our mean over the best mean of the others.
func overBest(by map[string][]float64) float64 {
	var others []float64
	for who, runs := range by {
		if who != ours {
			others = append(others, stat.Mean(runs, nil))
		}
	}
	return stat.Mean(by[ours], nil) / slices.Max(others)
}
