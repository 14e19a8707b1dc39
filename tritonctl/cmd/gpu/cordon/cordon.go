// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package cordon is `tritonctl gpu cordon`, `gpu drain` and `gpu uncordon`.
package cordon

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/diff"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds gpu cordon.
func New(f *factory.Factory) *cobra.Command {
	return build(f, api.CordonRequest{}, &cobra.Command{
		Use:   "cordon GPU",
		Short: "Keep new partitions and models off a GPU",
		Long: `cordon has a GPU take nothing new, over restarts of conch too: what is there stays as
long as plans want it there. tritonctl gpu drain empties it, gpu uncordon gives it back.
A GPU that has no partition is not offered to the policy at all.`,
	})
}

// NewDrain builds gpu drain.
func NewDrain(f *factory.Factory) *cobra.Command {
	return build(f, api.CordonRequest{Drain: true}, &cobra.Command{
		Use:   "drain GPU",
		Short: "Have everything leave a GPU, for maintenance",
		Long: `drain has the policy plan without a GPU and applies that plan, over restarts of conch
too: what serves there serves on until it is ready elsewhere. What finds no other
place is no longer served; --dry-run shows it. tritonctl gpu uncordon gives the GPU
back.`,
	})
}

// NewUndo builds gpu uncordon.
func NewUndo(f *factory.Factory) *cobra.Command {
	return build(f, api.CordonRequest{Undo: true}, &cobra.Command{Use: "uncordon GPU", Short: "Give a cordoned or drained GPU back to the policy"})
}

func build(f *factory.Factory, r api.CordonRequest, c *cobra.Command) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.ValidArgsFunction = factory.GPUNames(f)
	c.RunE = func(c *cobra.Command, args []string) error {
		r.GPU, r.Author = args[0], f.Author
		ask := func(conch *client.Client, ctx context.Context) (api.CordonResult, error) { return conch.Cordon(ctx, r) }
		if r.Drain && !r.DryRun && !f.Yes {
			if err := shown(c.Context(), f, r); err != nil {
				return err
			}
		}
		if r.Drain && !r.DryRun {
			f.Begin("what serves on %s serves on until it is ready elsewhere", r.GPU)
		}
		return factory.Show(c.Context(), f, ask, draw)
	}
	if r.Drain {
		c.Flags().BoolVar(&r.DryRun, "dry-run", false, "show what would leave, change nothing")
	}
	c.Flags().StringVar(&r.Reason, "reason", "", "the reason, for the event log and other operators")
	return c
}

// shown shows the person what a drain changes, and has it confirmed.
func shown(ctx context.Context, f *factory.Factory, r api.CordonRequest) error {
	if f.InTerminal {
		r.DryRun = true
		conch, err := f.Client()
		if err != nil {
			return err
		}
		would, err := conch.Cordon(ctx, r)
		if err != nil {
			return err
		}
		if err := output.Print(f.Err, "table", would, func(t *output.Table) { draw(t, would) }); err != nil {
			return err
		}
	}
	return f.Confirm("draining " + r.GPU)
}

func draw(t *output.Table, r api.CordonResult) {
	if r.Diff != nil {
		diff.Draw(t, *r.Diff)
	}
	switch c := r.GPU.Cordon; {
	case c == nil:
		t.Line("GPU " + r.GPU.ID + " may be used")
	case c.Drain:
		t.Line("GPU " + r.GPU.ID + " is drained")
	default:
		t.Line("GPU " + r.GPU.ID + " is cordoned: nothing new comes to it")
	}
}
