// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package calibrate is `tritonctl calibrate`.
package calibrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/estimator/calibrate/server"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/tritonctl/cmd/calibrate/interference"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

type options struct {
	*factory.Factory
	url, gpu, state, bundle string
	limit                   time.Duration
	idle                    float64
	python                  bool
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &options{Factory: f}
	c := &cobra.Command{
		Use:   "calibrate --url HOST:PORT",
		Short: "Measure micro-models on a Triton and fit a bundle that estimate uses",
		Long: `calibrate loads small models, one at a time, into a Triton whose model control is
explicit, runs each a few times, and unloads it. What was measured is kept in the
state file after every result, so a run that was ended goes on where it was; --limit
ends one by itself. --idle leaves the server alone between executions.

The bundle holds the device's sheet, the fitted coefficients, and their error on
micro-models that were left out: estimate --bundle FILE estimates with it.

It speaks to the server itself, past any conch, so give it one that serves nobody, or
calibrate while nobody uses it.`,
		Example: `tritonctl calibrate --url localhost:8001 --gpu L4 --bundle l4.json
tritonctl calibrate --url localhost:8001 --gpu cpu --python --bundle cpu.json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context()) },
	}
	c.Flags().StringVar(&o.url, "url", "", "gRPC endpoint of a Triton with --model-control-mode=explicit")
	c.Flags().StringVar(&o.gpu, "gpu", "", "GPU type that the server has the whole of, or cpu")
	c.Flags().BoolVar(&o.python, "python", false, "run graphs in the python backend, for a server without the onnxruntime backend (CPU alone)")
	c.Flags().StringVar(&o.bundle, "bundle", "bundle.json", "file to write")
	c.Flags().StringVar(&o.state, "state", "", "file that results are kept in (default the bundle's with .state)")
	c.Flags().DurationVar(&o.limit, "limit", 30*time.Minute, "how long measuring may take; a further run goes on")
	c.Flags().Float64Var(&o.idle, "idle", 0, "leave the server alone so many times as long as each execution took")
	_ = c.MarkFlagRequired("url")
	_ = c.MarkFlagRequired("gpu")
	c.AddCommand(interference.New(f))
	return c
}

// summary is what the command prints.
type summary struct {
	Bundle       string  `json:"bundle"`
	Server       string  `json:"server"`
	Measurements int     `json:"measurements"`
	Median       float64 `json:"left_out_median"`
	P90          float64 `json:"left_out_p90"`
}

func (o *options) run(ctx context.Context) error {
	cpu := o.gpu == "cpu"
	sheet := calibrate.CPU(16e9)
	if !cpu {
		var err error
		if sheet, err = gpu.Find(o.gpu); err != nil {
			return fmt.Errorf("%w: --gpu: %w", factory.ErrUsage, err)
		}
	}
	if o.python && !cpu {
		return fmt.Errorf("%w: --python runs on the CPU: say --gpu cpu", factory.ErrUsage)
	}
	if o.state == "" {
		o.state = o.bundle + ".state"
	}
	runner, err := server.Dial(ctx, o.url, server.Options{Python: o.python, CPU: cpu})
	if err != nil {
		return err
	}
	defer runner.Close() //nolint:errcheck // it has done its work
	quantile := .5
	if cpu {
		quantile = 0 // a processor does other things besides
	}
	state, err := calibrate.Measure(ctx, runner, calibrate.Micros(), calibrate.Options{
		State: o.state, Limit: o.limit, Idle: o.idle, Quantile: quantile, Clock: machineClock{}, Runs: 15,
		Progress: func(done, all int, model string) { o.Progress(fmt.Sprintf("%d of %d: %s", done+1, all, model)) },
	})
	if errors.Is(err, calibrate.ErrTimeIsUp) {
		return fmt.Errorf("%d results are in %s: %w", len(state.Results), o.state, err)
	}
	if err != nil {
		return err
	}
	bundle, err := calibrate.Fit(state, sheet, lower.ONNXRuntime())
	if err != nil {
		return err
	}
	text, err := json.Marshal(bundle)
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.bundle, append(text, '\n'), 0o644); err != nil {
		return err
	}
	s := summary{o.bundle, bundle.Server, bundle.Measurements, bundle.Median, bundle.P90}
	return o.Print(s, func(t *output.Table) {
		t.Row("BUNDLE", "SERVER", "MEASUREMENTS", "ERROR, MEDIAN", "ERROR, 90%")
		t.Row(s.Bundle, s.Server, s.Measurements, fmt.Sprintf("%.0f%%", 100*s.Median), fmt.Sprintf("%.0f%%", 100*s.P90))
	})
}

// machineClock is this machine's time.
type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

func (machineClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
