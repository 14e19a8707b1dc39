// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package calibrate is `tritonctl calibrate`.
package calibrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/estimator/calibrate/server"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/cmd/calibrate/interference"
	"github.com/conch-serving/conch/tritonctl/cmd/calibrate/model"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

type options struct {
	*factory.Factory
	url, gpu, state, bundle string
	limit                   time.Duration
	disturbance             float64
	shares                  []int
	python                  bool
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &options{Factory: f}
	c := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure micro-models on a device and fit a bundle that estimates use",
		Long: `calibrate has conch start a scratch partition on a GPU of the type, beside what
serves there, loads some sixty small models into it, one at a time, runs each a few
times, and unloads it; then once more for every other share. From then on conch
estimates with what was measured, and keeps it across restarts. --bundle writes it to
a file as well: estimate --bundle FILE estimates with it, without a conch.

--disturbance is the largest part of the time in which anything executes, --limit how
long it may take. What was measured is kept as it comes: an order that was ended, by
--limit or by you, goes on where it was when it is given again. Shares below 100 need
MPS, which enforces them.

With --url it speaks to a Triton of your own, past any conch; its model control must
be explicit, and it should serve nobody.`,
		Example: `tritonctl calibrate --gpu L4 --disturbance 0.1
tritonctl calibrate --url localhost:8001 --gpu cpu --python --bundle cpu.json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.url == "" {
				return o.order(c.Context())
			}
			return o.run(c.Context())
		},
	}
	c.Flags().StringVar(&o.url, "url", "", "gRPC endpoint of a Triton to measure on, instead of a scratch partition of conch")
	c.Flags().StringVar(&o.gpu, "gpu", "", "GPU type; with --url the server has the whole of one, or it is cpu (default the only type that conch has)")
	c.Flags().IntSliceVar(&o.shares, "shares", nil, "thread percentages to measure at (default 100, and 50 and 25 besides where MPS enforces shares)")
	c.Flags().BoolVar(&o.python, "python", false, "run graphs in the python backend, for a server without the onnxruntime backend (CPU alone)")
	c.Flags().StringVar(&o.bundle, "bundle", "", "file to write (with --url default bundle.json)")
	c.Flags().StringVar(&o.state, "state", "", "with --url: file that results are kept in (default the bundle's with .state)")
	c.Flags().DurationVar(&o.limit, "limit", 30*time.Minute, "how long measuring may take; a further run goes on")
	c.Flags().Float64Var(&o.disturbance, "disturbance", .1, "largest part of the time in which anything executes, at most 0.5 (with --url 1)")
	c.AddCommand(interference.New(f), model.New(f))
	return c
}

// order has conch measure.
func (o *options) order(ctx context.Context) error {
	if o.state != "" {
		return fmt.Errorf("%w: --state goes with --url: conch keeps its own", factory.ErrUsage)
	}
	c, err := o.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	r := api.CalibrateRequest{GPUType: o.gpu, Shares: o.shares, Disturbance: o.disturbance, LimitSeconds: o.limit.Seconds(), Python: o.python}
	task := o.Begin("measuring micro-models")
	got, err := c.Calibrate(ctx, r, func(p api.CalibrateProgress) {
		task.At(float64(p.Done), float64(p.All), fmt.Sprintf("%s at %d%%, %d of %d", p.What, p.Share, p.Done+1, p.All))
	})
	if err != nil {
		return err
	}
	if o.bundle != "" {
		if err := os.WriteFile(o.bundle, append(got.Bundle, '\n'), 0o644); err != nil {
			return err
		}
	}
	return o.show(summary{got.GPUType, o.bundle, got.Server, got.Measurements, got.Median, got.P90})
}

// summary is what the command prints.
type summary struct {
	GPUType      string  `json:"gpu_type"`
	Bundle       string  `json:"bundle,omitempty"`
	Server       string  `json:"server"`
	Measurements int     `json:"measurements"`
	Median       float64 `json:"left_out_median"`
	P90          float64 `json:"left_out_p90"`
}

func (o *options) run(ctx context.Context) error {
	cpu := o.gpu == "cpu"
	switch {
	case o.gpu == "":
		return fmt.Errorf("%w: --url needs --gpu: the type of the server's GPU, or cpu", factory.ErrUsage)
	case o.shares != nil:
		return fmt.Errorf("%w: --shares goes with conch, which starts a server for each; what --url names has all that it has", factory.ErrUsage)
	case !(o.disturbance > 0 && o.disturbance <= 1):
		return fmt.Errorf("%w: --disturbance %g is not above 0 and at most 1", factory.ErrUsage, o.disturbance)
	}
	o.bundle = cmp.Or(o.bundle, "bundle.json")
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
	task := o.Begin("measuring micro-models")
	state, err := calibrate.Measure(ctx, runner, calibrate.Micros(), calibrate.Options{
		State: o.state, Limit: o.limit, Idle: 1/o.disturbance - 1, Quantile: quantile, Clock: clock.Interruptible{}, Runs: 15,
		Progress: func(done, all int, model string) {
			task.At(float64(done), float64(all), fmt.Sprintf("%s, %d of %d", model, done+1, all))
		},
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
	if err := bundle.Write(o.bundle); err != nil {
		return err
	}
	return o.show(summary{bundle.Sheet.Name, o.bundle, bundle.Server, bundle.Measurements, bundle.Median, bundle.P90})
}

func (o *options) show(s summary) error {
	return o.Print(s, func(t *output.Table) {
		t.Row("GPU", "BUNDLE", "SERVER", "MEASUREMENTS", "ERROR, MEDIAN", "ERROR, 90%")
		t.Row(s.GPUType, cmp.Or(s.Bundle, "kept by conch"), s.Server, s.Measurements, fmt.Sprintf("%.0f%%", 100*s.Median), fmt.Sprintf("%.0f%%", 100*s.P90))
	})
}
