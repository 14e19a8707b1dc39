// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package replay is `tritonctl replay`.
package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/reporting"
)

// Options are the command's inputs.
type Options struct {
	reporting.Options
	snapshot string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Options: reporting.Options{Factory: f}}
	c := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Simulate recorded traffic under other disciplines, policies and GPUs",
		Long: `replay runs a trace of tritonctl record on virtual time over the GPUs, models and
profiles of a running conch, or of a snapshot that record wrote. What conch does
live at the moment is shown beside it.`,
		Example: `  tritonctl replay trace --discipline adaptive,timeout --html report.html
  tritonctl replay trace --snapshot snapshot.json --gpus 3`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c.Context(), args[0]) },
	}
	o.Flags(c)
	c.Flags().StringVar(&o.snapshot, "snapshot", "", "snapshot of tritonctl record instead of a running conch's")
	return c
}

func (o *Options) run(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", factory.ErrUsage, err)
	}
	traffic, err := workload.Measure(file)
	_ = file.Close() // it was only read
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if traffic.Requests == 0 {
		return fmt.Errorf("%s: the trace is empty: nothing arrived while it was recorded", path)
	}
	raw, live, err := o.world(ctx)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, m := range traffic.Models {
		names[m.Name] = true
	}
	raw, err = advise.Only(raw, names)
	if err != nil {
		if o.snapshot != "" {
			return fmt.Errorf("%s is no snapshot of tritonctl record --snapshot: %w", o.snapshot, err)
		}
		return err
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	s, err := scenario.FromSnapshot(raw, &scenario.Trace{File: full, Format: "conch", Truncated: traffic.Truncated})
	if err != nil {
		return err
	}
	variants, err := o.Variants(s)
	if err != nil {
		return err
	}
	runs, err := o.Run(ctx, variants, filepath.Dir(full))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r := report.New(fmt.Sprintf("replay of %s: %d requests in %v", filepath.Base(path), traffic.Requests, traffic.Length.Round(time.Millisecond)), runs...)
	r.Notes, r.Unknown, r.NoCurves = o.Notes(s), reporting.Unknown(s), "a trace has its own rate."
	if r.Setup, err = o.Setup(s, runs, filepath.Dir(full)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if traffic.Truncated {
		r.Notes = append(r.Notes, filepath.Base(path)+" ends in the middle of an entry; what is before it was replayed")
	}
	for _, m := range live {
		if names[m.Name] {
			r.Notes = append(r.Notes, fmt.Sprintf("live, over the last seconds: %s %.1f req/s, goodput %.1f req/s, bad %.2f%%, p99 %.1f ms, mean batch %.1f rows",
				m.Name, m.Rate, m.Goodput, 100*m.BadRate, 1e3*m.LatencyP99Seconds, m.MeanBatch))
		}
	}
	return o.Show(r)
}

// world is the snapshot, and what live models do where it is live.
func (o *Options) world(ctx context.Context) (json.RawMessage, []api.Model, error) {
	if o.snapshot != "" {
		raw, err := os.ReadFile(o.snapshot)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: --snapshot: %w", factory.ErrUsage, err)
		}
		return raw, nil, nil
	}
	conch, err := o.Client()
	if err != nil {
		return nil, nil, err
	}
	raw, err := conch.Snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	live, err := conch.Models(ctx)
	return raw, live, err
}
