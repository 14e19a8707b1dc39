// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulate is `tritonctl simulate`.
package simulate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	changed  func(flag string) bool
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
	o.changed = c.Flags().Changed
	c.Flags().BoolVar(&o.goodput, "goodput", false, "search the highest rate that holds (at most 1% bad for every model)")
	return c
}

func (o *Options) run(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w: %w", factory.ErrUsage, err)
	}
	s, err := scenario.Parse(path, text)
	if err != nil {
		return err
	}
	if o.changed("duration") {
		if o.duration <= 0 {
			return fmt.Errorf("%w: --duration %v is not above 0", factory.ErrUsage, o.duration)
		}
		s.Duration = scenario.Duration(o.duration)
		if err := s.Check(); err != nil {
			return fmt.Errorf("%w: --duration: %w", factory.ErrUsage, err)
		}
	}
	if o.goodput {
		if s.Trace != nil {
			return fmt.Errorf("%w: --goodput: %s has a trace, and a trace has its own rate", factory.ErrUsage, path)
		}
	}
	variants, err := o.Variants(s)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	runs, err := o.Run(ctx, variants, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if o.goodput {
		if !slices.ContainsFunc(runs[0].Result.Models, func(m sim.ModelResult) bool { return m.SLOUs > 0 }) {
			return fmt.Errorf("%w: --goodput: no model of %s has an slo, so that every rate holds", factory.ErrUsage, path)
		}
		for i, v := range variants {
			if runs[i].Goodput, err = o.Goodput(ctx, v, dir, runs[i].Result.Total.Rate); err != nil {
				return fmt.Errorf("%s: %s: %w", path, v.Name, err)
			}
		}
	}
	why, err := o.Curve(ctx, variants, runs, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	title := s.Name
	if title == "" {
		title = filepath.Base(path)
	}
	r := report.New(title, runs...)
	r.Notes, r.Unknown, r.NoCurves = o.Notes(s), reporting.Unknown(s), why
	if r.Setup, err = o.Setup(s, runs, dir); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if s.Trace != nil {
		total := runs[0].Result
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %d requests count, of %.6g s", s.Trace.File, total.Total.Arrivals, total.Seconds))
	}
	return o.Show(r)
}
