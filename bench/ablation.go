// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// ablation is a part of adaptive, and a load on which it is taken away.
type ablation struct {
	name          string // of the part
	load          column
	with, without *cell
}

// parts of adaptive, and what it is without each: its rules, and, instead of its drop policy, two that do less.
func parts() (names []string, without map[string]scenario.Dispatch) {
	without = map[string]scenario.Dispatch{}
	for _, r := range queue.AdaptiveRules() {
		names = append(names, r)
		without[r] = rule("adaptive", "", map[string]string{"without": r})
	}
	for _, drop := range []string{"window", "prefix"} {
		name := "reserve." + drop
		names = append(names, name)
		without[name] = rule("adaptive", drop, nil)
	}
	return names, without
}

// ablations are the parts and loads to measure. A load that several parts share is measured once with all of them.
func (b *bench) ablations() ([]*ablation, error) {
	all := *b
	all.only = ""
	columns, err := all.columns()
	if err != nil {
		return nil, err
	}
	more, err := clusters()
	if err != nil {
		return nil, err
	}
	known := map[string]column{}
	for _, c := range append(columns, more...) {
		known[c.name()] = c
	}
	names, without := parts()
	loads, whole := ablationLoads(), map[string]*cell{}
	var chosen []*ablation
	for _, name := range names {
		if len(loads[name]) == 0 {
			return nil, fmt.Errorf("ablation: no load is known for %s", name)
		}
		for _, load := range loads[name] {
			c, ok := known[load]
			if !ok {
				return nil, fmt.Errorf("ablation: %s: there is no load %s", name, load)
			}
			one := &ablation{name: name, load: c}
			if !strings.Contains(one.figure(), b.only) {
				continue
			}
			search := func(d scenario.Dispatch) *cell {
				return &cell{
					name: one.figure(), scenario: c.scenario(d), guess: .8 * c.bound, overall: !c.each,
					requests: b.simulated(c.requests()), tolerance: .002, step: 1.1,
				}
			}
			if whole[load] == nil {
				whole[load] = search(rule("adaptive", "", nil))
			}
			one.with, one.without = whole[load], search(without[name])
			chosen = append(chosen, one)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("ablation: no figure has " + b.only + " in its name")
	}
	return chosen, nil
}

func (a *ablation) figure() string { return "ablation." + a.name + "." + a.load.name() + ".ratio" }

// ablation measures what each rule of adaptive brings: its goodput with the rule over that without it, seed by seed, under the same arrivals.
func (b *bench) ablation(ctx context.Context, r *figure.Report) error {
	all, err := b.ablations()
	if err != nil {
		return err
	}
	var with, without []*cell
	known := map[*cell]bool{}
	for _, one := range all {
		if !known[one.with] {
			known[one.with] = true
			with = append(with, one.with)
		}
		without = append(without, one.without)
	}
	seeds := b.roundsOr(6)
	if err := b.search(ctx, with, seeds); err != nil {
		return err
	}
	for _, one := range all {
		if rate := one.with.found.Rate; rate > 0 {
			one.without.guess, one.without.step = rate, 1.02
		}
	}
	if err := b.search(ctx, without, seeds); err != nil {
		return err
	}
	w := tabwriter.NewWriter(b.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "without\tload\twith it\twithout it\tratio")
	for _, one := range all {
		if held(one.with) == 0 || held(one.without) == 0 {
			return fmt.Errorf("%s: with it %v req/s hold and without it %v, with some seed none: no ratio; choose another load", one.figure(), rates(one.with.found), rates(one.without.found))
		}
		d := against(one.with, one.without)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", one.name, one.load.name(), figure.Number(held(one.with)), figure.Number(held(one.without)), d)
		r.AddMean(one.figure(), quotients(one.with, one.without), "ratio",
			fmt.Sprintf("%s req/s with it, %s without; 95%% interval +-%.3f", figure.Number(held(one.with)), figure.Number(held(one.without)), d.ratio*d.margin))
	}
	r.Emulated = "everything: simulated time, no delays, every model on every GPU; at most 1% bad of all requests together"
	return w.Flush()
}
