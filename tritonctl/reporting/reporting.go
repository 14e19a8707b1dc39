// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package reporting is what the commands that simulate share: the flags of a report and its way to the terminal, a file and the browser.
package reporting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// Options are the flags.
type Options struct {
	*factory.Factory
	Destination
	Disciplines, Policies []string
	Processes             bool
	GPUs                  int
	Seed                  uint64
	// Curves has other rates simulated for the page; without the flag, where that takes seconds.
	Curves bool
	// Timeline is the window of the page's timeline.
	Timeline string

	gpus, curves *pflag.Flag
	// command makes the report again.
	command string
}

// Flags adds them to a command.
func (o *Options) Flags(c *cobra.Command) {
	o.Destination.Flags(c)
	c.Flags().StringSliceVar(&o.Disciplines, "discipline", nil, "dispatch disciplines to compare: "+strings.Join(scenario.Disciplines(), ", "))
	c.Flags().StringSliceVar(&o.Disciplines, "disciplines", nil, "the same as --discipline")
	c.Flags().StringSliceVar(&o.Policies, "policy", nil, "policies to compare: "+strings.Join(scenario.Policies(), ", ")+"; or NAME=PATH, a policy of others as an executable")
	c.Flags().BoolVar(&o.Processes, "processes", false, "run policies as processes, as conch does; the result is the same")
	c.Flags().StringSliceVar(&o.Policies, "policies", nil, "the same as --policy")
	c.Flags().IntVar(&o.GPUs, "gpus", 0, "so many GPUs instead of those there are: the first ones, or copies of the last one besides")
	o.gpus = c.Flags().Lookup("gpus")
	c.Flags().StringVar(&o.Timeline, "timeline", "", "window of the timeline of batches, such as 10s-12s (default: the scenario's, or the first second that counts)")
	c.Flags().Uint64Var(&o.Seed, "seed", 0, "seed of everything random (default: that of the scenario or snapshot)")
	c.Flags().BoolVar(&o.Curves, "curves", false, "simulate other rates and seeds too, for the curves of the page (default: with --html, unless that takes long)")
	o.curves = c.Flags().Lookup("curves")
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		o.command = CommandLine(c, args)
		return run(c, args)
	}
	c.MarkFlagsMutuallyExclusive("discipline", "disciplines")
	c.MarkFlagsMutuallyExclusive("policy", "policies")
}

// Variant is one run of a comparison.
type Variant struct {
	Name     string
	Scenario scenario.Scenario
}

// Variants are the runs that the flags ask for: every policy, or every discipline, or the scenario as it is.
func (o *Options) Variants(s *scenario.Scenario) ([]Variant, error) {
	if len(o.Disciplines) > 0 && len(o.Policies) > 0 {
		return nil, fmt.Errorf("%w: --discipline and --policy: compare one of them at a time", factory.ErrUsage)
	}
	if o.gpus != nil && o.gpus.Changed && o.GPUs < 1 {
		return nil, fmt.Errorf("%w: --gpus %d: at least one is needed", factory.ErrUsage, o.GPUs)
	}
	for flag, names := range map[string][]string{"--discipline": o.Disciplines, "--policy": o.Policies} {
		for i, name := range names {
			if name == "" {
				return nil, fmt.Errorf("%w: %s: a name is empty; names are separated by one comma", factory.ErrUsage, flag)
			}
			if slices.Contains(names[:i], name) {
				return nil, fmt.Errorf("%w: %s names %s twice", factory.ErrUsage, flag, name)
			}
		}
	}
	if err := o.window(s); err != nil {
		return nil, err
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	var all []Variant
	for _, name := range o.Policies {
		changed := *s
		changed.Plan = nil
		name, executable, third := strings.Cut(name, "=")
		p := scenario.Policy{Name: name}
		if s.Policy != nil {
			p = *s.Policy
			if p.Name != name {
				p.Name, p.Parameters, p.Executable = name, nil, ""
			}
		}
		if third {
			full, err := filepath.Abs(executable)
			if err != nil {
				return nil, err
			}
			p.Executable = full
		}
		if p.Executable == "" && !slices.Contains(scenario.Policies(), name) {
			return nil, fmt.Errorf("%w: --policy: there is no policy %q in this program; there are: %s. One of others is NAME=PATH of its executable",
				factory.ErrUsage, name, strings.Join(scenario.Policies(), ", "))
		}
		changed.Policy = &p
		all = append(all, Variant{name, changed})
	}
	for _, name := range o.Disciplines {
		changed := *s
		if changed.Dispatch.Discipline != name {
			changed.Dispatch = scenario.Dispatch{Discipline: name}
		}
		if changed.Policy != nil && changed.Policy.Name == "static" {
			p := *changed.Policy
			p.Parameters = map[string]string{}
			for k, v := range changed.Policy.Parameters {
				p.Parameters[k] = v
			}
			p.Parameters["discipline"] = name
			changed.Policy = &p
		} else if changed.Policy != nil {
			return nil, fmt.Errorf("%w: --discipline: policy %s chooses the disciplines of this scenario", factory.ErrUsage, changed.Policy.Name)
		}
		if err := changed.Check(); err != nil {
			return nil, fmt.Errorf("%w: --discipline: %w", factory.ErrUsage, err)
		}
		all = append(all, Variant{name, changed})
	}
	if len(all) == 0 {
		name := s.Dispatch.Discipline
		if s.Policy != nil {
			name = s.Policy.Name
		}
		if name == "" {
			name = "as it is"
		}
		all = append(all, Variant{name, *s})
	}
	if o.Processes {
		for i := range all {
			if all[i].Scenario.Policy == nil {
				return nil, fmt.Errorf("%w: --processes: there is no policy to run; name one with --policy", factory.ErrUsage)
			}
			p := *all[i].Scenario.Policy
			p.Process = true
			all[i].Scenario.Policy = &p
		}
	}
	return slices.Clip(all), nil
}

// window puts --timeline, or a default, into the scenario.
func (o *Options) window(s *scenario.Scenario) error {
	const most = 10_000 // batches of a run
	if o.Timeline == "" {
		if s.Timeline == nil {
			s.Timeline = &scenario.Timeline{From: s.Warmup, To: s.Warmup + scenario.Duration(time.Second), Max: most}
		}
		return nil
	}
	from, to, ok := strings.Cut(o.Timeline, "-")
	t := &scenario.Timeline{Max: most}
	switch {
	case !ok || t.From.UnmarshalText([]byte(from)) != nil || t.To.UnmarshalText([]byte(to)) != nil:
		return fmt.Errorf("%w: --timeline %q: write it like 10s-12s", factory.ErrUsage, o.Timeline)
	case t.To <= t.From:
		return fmt.Errorf("%w: --timeline %q ends before it begins; write it like 10s-12s", factory.ErrUsage, o.Timeline)
	case s.Duration > 0 && t.From >= s.Duration:
		return fmt.Errorf("%w: --timeline %q begins when requests no longer arrive, after %v", factory.ErrUsage, o.Timeline, time.Duration(s.Duration))
	}
	s.Timeline = t
	return nil
}

// Run simulates every variant once.
func (o *Options) Run(ctx context.Context, all []Variant, dir string) ([]report.Run, error) {
	runs := make([]report.Run, 0, len(all))
	task := o.Begin("simulating")
	for i, v := range all {
		err := o.with(ctx, v, dir, func(options scenario.Options) error {
			options.Progress = func(done float64) { task.At(float64(i)+done, float64(len(all)), v.Name) }
			r, err := v.Scenario.Run(ctx, options)
			runs = append(runs, report.Run{Name: v.Name, Result: r})
			return err
		})
		if err != nil {
			return nil, named(all, v, err)
		}
	}
	return runs, nil
}

// Goodput searches the highest rate that a variant holds, over three seeds, for a rate without its spread says little.
func (o *Options) Goodput(ctx context.Context, v Variant, dir string, guess float64) (found *sim.Found, err error) {
	seed := max(1, v.Scenario.Seed)
	if o.Seed > 0 {
		seed = o.Seed
	}
	task, seeds := o.Begin("searching the highest rate that %s holds", v.Name), []uint64{seed, seed + 1, seed + 2}
	err = o.with(ctx, v, dir, func(options scenario.Options) error {
		found, err = v.Scenario.Goodput(ctx, options, sim.Search{
			Seeds: seeds, Guess: guess,
			Trying: func(rate float64, seed uint64) {
				task.At(float64(slices.Index(seeds, seed)), float64(len(seeds)), fmt.Sprintf("%.0f req/s, seed %d", rate, seed))
			},
		})
		return err
	})
	return found, err
}

// Notes are the scenario's, and what the flags leave out of it.
func (o *Options) Notes(s *scenario.Scenario) []string {
	notes := s.Notes()
	for _, name := range o.Disciplines {
		if note := scenario.NoteOn(name); note != "" && name != s.Dispatch.Discipline {
			notes = append(notes, note)
		}
	}
	if o.GPUs > 0 && s.Policy == nil && len(o.Policies) == 0 && (s.Plan != nil || s.Snapshot != nil) {
		notes = append(notes, "--gpus leaves out where models were placed: every model is on every GPU; --policy places them")
	}
	return notes
}

// named says which of several runs failed.
func named(all []Variant, v Variant, err error) error {
	if len(all) == 1 {
		return err
	}
	return fmt.Errorf("%s: %w", v.Name, err)
}

// with opens what a run of v needs, and closes it again.
func (o *Options) with(ctx context.Context, v Variant, dir string, run func(scenario.Options) error) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	p, closed, err := v.Scenario.Policy.Open(ctx, dir, own)
	if err != nil {
		return err
	}
	return errors.Join(run(scenario.Options{Dir: dir, Seed: o.Seed, GPUs: o.GPUs, Policy: p}), closed())
}
