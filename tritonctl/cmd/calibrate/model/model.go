// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package model is `tritonctl calibrate model`.
package model

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	r := api.CalibrateRequest{}
	var limit time.Duration
	c := &cobra.Command{
		Use:   "model MODEL",
		Short: "Measure one model at each batch size and share, while nobody uses it",
		Long: `model has conch load a model of the repository into a scratch partition, beside what
serves there, and time batches of 1, 2, 4, ... rows of zeros, for every share. It waits
while clients use the model. What was measured is the model's calibrated profile: it
outweighs estimates, and yields to what is observed of clients' batches.`,
		Example:           `tritonctl calibrate model resnet50 --gpu L4 --shares 100,50`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.ModelNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			r.Model, r.LimitSeconds = args[0], limit.Seconds()
			return run(c.Context(), f, r)
		},
	}
	c.Flags().StringVar(&r.GPUType, "gpu", "", "GPU type (default the only one that conch has)")
	c.Flags().IntSliceVar(&r.Shares, "shares", nil, "thread percentages (default 100, and 50 and 25 besides where MPS enforces shares)")
	c.Flags().DurationVar(&limit, "limit", 10*time.Minute, "how long it may take")
	c.Flags().Float64Var(&r.Disturbance, "disturbance", .1, "largest part of the time in which anything executes, at most 0.5")
	return c
}

func run(ctx context.Context, f *factory.Factory, r api.CalibrateRequest) error {
	c, err := f.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	task := f.Begin("measuring %s", r.Model)
	got, err := c.Calibrate(ctx, r, func(p api.CalibrateProgress) {
		task.At(float64(p.Done), float64(p.All), fmt.Sprintf("%s at %d%%", p.What, p.Share))
	})
	if err != nil {
		return err
	}
	return f.Print(got.Shares, func(t *output.Table) {
		t.Row("SHARE", "BATCH", "LATENCY", "REPEATS")
		for _, s := range got.Shares {
			for _, b := range s.Batches {
				t.Row(fmt.Sprintf("%d%%", s.ThreadPercentage), b.Rows, output.Milliseconds(b.Seconds), b.Repeats)
			}
		}
	})
}
