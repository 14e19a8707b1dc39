// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package reporting is what the commands that simulate share: the flags of a report and its way to the terminal, a file and the browser.
package reporting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the flags.
type Options struct {
	*factory.Factory
	HTML                  string
	Browse                bool
	Disciplines, Policies []string
	GPUs                  int
	Seed                  uint64
}

// Flags adds them to a command.
func (o *Options) Flags(c *cobra.Command) {
	c.Flags().StringVar(&o.HTML, "html", "", "write the report as one HTML page to this file too")
	c.Flags().BoolVar(&o.Browse, "open", false, "open the HTML page in the browser (without --html, from a temporary file)")
	c.Flags().StringSliceVar(&o.Disciplines, "discipline", nil, "dispatch disciplines to compare: adaptive, deferred, eager, timeout")
	c.Flags().StringSliceVar(&o.Disciplines, "disciplines", nil, "the same as --discipline")
	c.Flags().StringSliceVar(&o.Policies, "policy", nil, "policies to compare")
	c.Flags().StringSliceVar(&o.Policies, "policies", nil, "the same as --policy")
	c.Flags().IntVar(&o.GPUs, "gpus", 0, "so many GPUs instead of those there are: the first ones, or copies of the last one besides")
	c.Flags().Uint64Var(&o.Seed, "seed", 0, "seed of everything random (default: the scenario's)")
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
		return nil, errors.New("--discipline and --policy: compare one of them at a time")
	}
	var all []Variant
	for _, name := range o.Policies {
		one := *s
		one.Plan = nil
		p := scenario.Policy{Name: name}
		if s.Policy != nil {
			p = *s.Policy
			if p.Name != name {
				p.Name, p.Parameters = name, nil
			}
		}
		one.Policy = &p
		all = append(all, Variant{name, one})
	}
	for _, name := range o.Disciplines {
		one := *s
		if one.Dispatch.Discipline != name {
			one.Dispatch = scenario.Dispatch{Discipline: name}
		}
		if one.Policy != nil && one.Policy.Name == "static" {
			p := *one.Policy
			p.Parameters = map[string]string{}
			for k, v := range one.Policy.Parameters {
				p.Parameters[k] = v
			}
			p.Parameters["discipline"] = name
			one.Policy = &p
		} else if one.Policy != nil {
			return nil, fmt.Errorf("--discipline: policy %s chooses the disciplines of this scenario", one.Policy.Name)
		}
		all = append(all, Variant{name, one})
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
	return slices.Clip(all), nil
}

// Run simulates every variant once.
func (o *Options) Run(ctx context.Context, all []Variant, dir string) ([]report.Run, error) {
	runs := make([]report.Run, 0, len(all))
	for i, v := range all {
		o.Progress("run %d of %d: %s", i+1, len(all), v.Name)
		options, err := o.Scenario(ctx, v, dir)
		if err != nil {
			return nil, err
		}
		r, err := v.Scenario.Run(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		runs = append(runs, report.Run{Name: v.Name, Result: r})
	}
	return runs, nil
}

// Scenario gives the options of a run of v.
func (o *Options) Scenario(ctx context.Context, v Variant, dir string) (scenario.Options, error) {
	options := scenario.Options{Dir: dir, Seed: o.Seed, GPUs: o.GPUs}
	if v.Scenario.Policy != nil {
		p, err := v.Scenario.Policy.InProcess(ctx)
		if err != nil {
			return options, err
		}
		options.Policy = p
	}
	return options, nil
}

// Show writes the report where the flags say.
func (o *Options) Show(r *report.Report) error {
	if o.HTML != "" || o.Browse {
		var page bytes.Buffer
		if err := r.HTML(&page); err != nil {
			return err
		}
		path := o.HTML
		if path == "" {
			dir, err := os.MkdirTemp("", "tritonctl")
			if err != nil {
				return err
			}
			path = filepath.Join(dir, "report.html")
		}
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil { //nolint:gosec // a report is for everybody to read
			return fmt.Errorf("report: %w", err)
		}
		if o.Browse {
			full, err := filepath.Abs(path)
			if err != nil {
				return err
			}
			if err := o.Open(full); err != nil {
				return fmt.Errorf("no browser could be started (%w); the page is %s", err, full)
			}
		}
	}
	if o.Format == "table" {
		return r.Table(o.Out)
	}
	return o.Print(r, func(*output.Table) {})
}
