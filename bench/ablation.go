// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// part is a rule of adaptive, or of reserve, and what takes it away.
type part struct {
	name string
	zero func(*adaptive.Params)
}

// parts of adaptive, in the order of the queue's page.
func parts() []part {
	return []part{
		{"stagger", func(p *adaptive.Params) { p.Stagger = 0 }},
		{"light", func(p *adaptive.Params) { p.Light = 0 }},
		{"worth", func(p *adaptive.Params) { p.WorthSlack = 0 }},
		{"crowd", func(p *adaptive.Params) { p.Crowd = 0 }},
		{"haste", func(p *adaptive.Params) { p.Haste = 0 }},
		{"quiet", func(p *adaptive.Params) { p.Quiet = 0 }},
		{"scarce", func(p *adaptive.Params) { p.Scarce = 0 }},
		{"size", func(p *adaptive.Params) { p.InTheWay = 0 }},
		{"shielded", func(p *adaptive.Params) { p.Shielded = 0 }},
		{"brief", func(p *adaptive.Params) { p.Dearer = 0 }},
		{"keep", func(p *adaptive.Params) { p.Keep = 0 }},
		{"chance", func(p *adaptive.Params) { p.Chance = 0 }},
		{"lift", func(p *adaptive.Params) { p.Lift = 0 }},
		{"calm", func(p *adaptive.Params) { p.Calm = 0 }},
		{"margin", func(p *adaptive.Params) { p.Margin = 0 }},
		{"gathers", func(p *adaptive.Params) { p.Gathers = 0 }},
		{"thrift", func(p *adaptive.Params) { p.Thrift = 0 }},
		{"edge", func(p *adaptive.Params) { p.Edge = 0 }},
	}
}

// ablationLoads is on how many of the loads of the development seed rules are taken away.
const ablationLoads = 20

// ablation measures what each rule of adaptive brings on the loads that the development seed draws: its goodput with the rule over that
// without it, under the same arrivals, by searches that begin at the same rate: a rule that changes nothing brings 1.
func (b *bench) ablation(ctx context.Context, r *figure.Report) error {
	all := slices.DeleteFunc(parts(), func(p part) bool { return !strings.Contains("ablation."+p.name, b.only) })
	if len(all) == 0 {
		return errors.New("ablation: no rule has " + b.only + " in its name")
	}
	gains, err := b.gains(ctx, all)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(b.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "without\tmean\tmost\tleast\t>1.01\t<.99")
	for i, p := range all {
		var most, least gain
		var ratios []float64
		more, less := 0, 0
		for k, g := range gains[i] {
			if k == 0 || g.ratio > most.ratio {
				most = g
			}
			if k == 0 || g.ratio < least.ratio {
				least = g
			}
			if g.ratio > 1.01 {
				more++
			}
			if g.ratio < .99 {
				less++
			}
			ratios = append(ratios, g.ratio)
		}
		mean := stat.GeometricMean(ratios, nil)
		fmt.Fprintf(w, "%s\t%.3f\t%s %.3f\t%s %.3f\t%d\t%d\n", p.name, mean, most.load, most.ratio, least.load, least.ratio, more, less)
		r.AddRuns("ablation."+p.name+".mean", []float64{mean}, "ratio", fmt.Sprintf("goodput with the rule over that without it; above 1.01 on %d of %d loads, below .99 on %d", more, len(ratios), less))
		r.AddRuns("ablation."+p.name+".most", []float64{most.ratio}, "ratio", "on "+most.load)
		r.AddRuns("ablation."+p.name+".least", []float64{least.ratio}, "ratio", "on "+least.load)
	}
	r.Emulated = "everything: simulated time, no delays, every model on every GPU; at most 1% bad of every model's requests"
	return w.Flush()
}

// gain is what a rule brings on a load.
type gain struct {
	load  string
	ratio float64
}

// gains are those of each rule on each load.
func (b *bench) gains(ctx context.Context, all []part) ([][]gain, error) {
	loads := b.drawnLoads(developmentSeed)
	loads = loads[:min(len(loads), ablationLoads)]
	gains := make([][]gain, len(all))
	for i := range gains {
		gains[i] = make([]gain, len(loads))
	}
	err := onAllCores(ctx, indices(loads), func(ctx context.Context, k int) error {
		d := loads[k]
		seeds := b.roundsOr(2)
		first, err := d.goodputs(ctx, adaptive.Defaults(), .7*d.capacity, b.seed, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		whole, err := d.goodputs(ctx, adaptive.Defaults(), first[0], b.seed, seeds)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		for i, p := range all {
			params := adaptive.Defaults()
			p.zero(&params)
			without, err := d.goodputs(ctx, params, first[0], b.seed, seeds)
			if err != nil {
				return fmt.Errorf("%s without %s: %w", d.name, p.name, err)
			}
			sum := 0.0
			for s := range whole {
				sum += math.Log(whole[s] / without[s])
			}
			gains[i][k] = gain{d.name, math.Exp(sum / float64(len(whole)))}
		}
		b.say(d.name)
		return nil
	})
	return gains, err
}

// goodputs are what adaptive holds with some constants, seed by seed; at least a hundredth of what the GPUs could do, so that no load makes a mean alone.
func (d *draw) goodputs(ctx context.Context, params adaptive.Params, guess float64, seed uint64, seeds int) (all []float64, err error) {
	for k := range uint64(seeds) {
		rate, err := d.highest(ctx, entrant{rule: rule("adaptive", "", nil), params: &params, tolerance: .01}, guess, 1.03, seed+k)
		if err != nil {
			return nil, err
		}
		guess = max(rate, .01*d.capacity)
		all = append(all, guess)
	}
	return all, nil
}
