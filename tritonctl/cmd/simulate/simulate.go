// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulate is `tritonctl simulate`.
package simulate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/reporting"
)

// Options are the command's inputs.
type Options struct {
	reporting.Options
	duration time.Duration
	goodput  bool
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Options: reporting.Options{Factory: f}}
	c := &cobra.Command{
		Use:   "simulate SCENARIO.yaml",
		Short: "Run a scenario on virtual time, and compare disciplines or policies",
		Long: `simulate runs Conch's own queue and policies over GPUs that are arithmetic: a
minute of traffic in about a second, and the same from the same seed. It needs no
conch. docs/simulate.md describes scenarios.`,
		Example: `  tritonctl simulate docs/examples/eight-on-four.yaml
  tritonctl simulate docs/examples/eight-on-four.yaml --disciplines adaptive,timeout --html report.html
  tritonctl simulate docs/examples/eight-on-four.yaml --disciplines adaptive,eager --goodput`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c.Context(), args[0]) },
	}
	o.Flags(c)
	c.Flags().DurationVar(&o.duration, "duration", 0, "length of the arrivals instead of the scenario's")
	c.Flags().BoolVar(&o.goodput, "goodput", false, "search the highest rate that holds (at most 1% bad for every model)")
	return c
}

func (o *Options) run(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	s, err := scenario.Parse(path, text)
	if err != nil {
		return err
	}
	if o.duration > 0 {
		s.Duration = scenario.Duration(o.duration)
	}
	if s.Timeline == nil {
		s.Timeline = &scenario.Timeline{From: s.Warmup, To: s.Warmup + scenario.Duration(time.Second), Max: 2000}
	}
	variants, err := o.Variants(s)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	runs, err := o.Run(ctx, variants, dir)
	if err != nil {
		return err
	}
	if o.goodput {
		for i, v := range variants {
			if runs[i].Goodput, err = o.search(ctx, v, dir, runs[i].Result.Total.Rate); err != nil {
				return fmt.Errorf("%s: %w", v.Name, err)
			}
		}
	}
	title := s.Name
	if title == "" {
		title = filepath.Base(path)
	}
	return o.Show(report.New(title, runs...))
}

// search over three seeds, for a rate without its spread says little.
func (o *Options) search(ctx context.Context, v reporting.Variant, dir string, guess float64) (*sim.Found, error) {
	o.Progress("searching the highest rate that %s holds", v.Name)
	options, err := o.Scenario(ctx, v, dir)
	if err != nil {
		return nil, err
	}
	seed := max(1, v.Scenario.Seed)
	if o.Seed > 0 {
		seed = o.Seed
	}
	return v.Scenario.Goodput(ctx, options, sim.Search{Seeds: []uint64{seed, seed + 1, seed + 2}, Guess: guess})
}
