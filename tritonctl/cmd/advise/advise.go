// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package advise is `tritonctl advise`.
package advise

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	seeds := 5
	c := &cobra.Command{
		Use:   "advise [TRACE]",
		Short: "Say what Conch would gain with your traffic",
		Long: `advise simulates the models, GPUs, placement and profiles that a running conch
sees, in any mode, under Triton's own dynamic batching with the delays of your
config.pbtxt, and under Conch's adaptive discipline. The traffic is a trace of
tritonctl record, or generated at the present rates. Where the data are too thin
it says what is missing instead of a number.

tritonctl gpu advise answers another question: whether the load of late wants
more or fewer GPUs.`,
		Example: `  tritonctl advise
  tritonctl record --for 5m --file trace && tritonctl advise trace`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return run(c.Context(), f, seeds, args) },
	}
	c.Flags().IntVar(&seeds, "seeds", seeds, "repetitions, of which the spread is shown")
	return c
}

func run(ctx context.Context, f *factory.Factory, seeds int, args []string) error {
	if seeds < 1 || seeds > 100 {
		return fmt.Errorf("%w: --seeds %d is not from 1 to 100", factory.ErrUsage, seeds)
	}
	in := advise.Input{Batching: map[string]advise.Batching{}, Progress: func(text string) { f.Step("%s", text) }}
	for i := range seeds {
		in.Seeds = append(in.Seeds, uint64(i+1))
	}
	if len(args) > 0 {
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		in.Traffic, err = advise.ReadTraffic(file)
		_ = file.Close() // it was only read
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
	}
	api, err := f.Client()
	if err != nil {
		return err
	}
	raw, err := api.Snapshot(ctx)
	if err != nil {
		return err
	}
	in.Snapshot = &policy.Snapshot{}
	if err := protojson.Unmarshal(raw, in.Snapshot); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	models, err := api.Models(ctx)
	if err != nil {
		return err
	}
	version, err := api.Version(ctx)
	if err != nil {
		return err
	}
	for _, m := range models {
		if version.Mode == "observe" {
			if in.Seen == nil {
				in.Seen = map[string]advise.Seen{}
			}
			in.Seen[m.Name] = advise.Seen{Rate: m.Rate, BadRate: m.BadRate}
		}
		in.Batching[m.Name] = advise.Batching{Dynamic: m.DynamicBatching, Delay: time.Duration(m.MaxQueueDelaySeconds * 1e9)}
	}
	a, err := advise.Make(ctx, in)
	f.Done()
	if err != nil {
		return err
	}
	return f.Print(a, func(t *output.Table) {
		for _, line := range a.Text {
			t.Line(line)
		}
	})
}
