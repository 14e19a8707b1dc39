// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package verify is `tritonctl merge verify`.
package verify

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/internal/triton/trial"
	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/cmd/merge/analyze"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	server, repository string
	merger             merger.VerifyOptions
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "verify MODEL MODEL... | verify MERGE MODEL MODEL... --triton HOST:PORT --repository DIRECTORY",
		Short: "Run a merge beside its members on a Triton, and compare",
		Long: `verify runs the members and their merge on the same generated rows and compares what
comes out: batches of (1,1), (2,3), (1,max) and (0,n) rows of two members, each again
with other rows of the neighbour, which must change nothing. It exits 1 where anything
differs by more than --bound; only a merge that passed may serve.

With names of models, conch does it: it merges those of its repository and starts a
server for that alone, of the same kind as those that serve. Nothing of it is kept, and
what serves goes on. (What merge: of conch.yaml asks for is verified without an order.)

With --triton, the merge is a directory that emit wrote and the models are its members'
directories. The Triton has to be for trials: started with
--model-control-mode=explicit on an empty repository, which this command may write.
Models are copied there, loaded, and taken away again. The result goes into the merge's
manifest.`,
		Example: `  tritonctl merge verify ner sentiment
  tritonctl merge verify /var/tmp/bert /models/ner /models/sentiment --triton localhost:8001 --repository /tmp/trials`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case o.server == "" && o.repository == "":
				return o.order(c.Context(), args)
			case o.server == "" || o.repository == "":
				return fmt.Errorf("%w: --triton and --repository go together", factory.ErrUsage)
			case len(args) < 3:
				return fmt.Errorf("%w: with --triton: a directory that emit wrote, and the directories of its members", factory.ErrUsage)
			}
			return o.run(c.Context(), args)
		},
	}
	c.Flags().StringVar(&o.server, "triton", "", "gRPC address of a Triton for trials, instead of a scratch server of conch")
	c.Flags().StringVar(&o.repository, "repository", "", "its model repository")
	c.Flags().Float64Var(&o.merger.Bound, "bound", 1e-5, "largest difference, relative to the largest element of the output")
	c.Flags().Int64Var(&o.merger.Open, "open", 8, "size of dimensions that requests decide, such as a length")
	c.Flags().Uint64Var(&o.merger.Seed, "seed", 1, "seed of the generated rows")
	return c
}

// order has conch merge models of its repository, and verify that.
func (o *Options) order(ctx context.Context, names []string) error {
	c, err := o.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	r := api.MergeVerifyRequest{Members: names, Bound: o.merger.Bound, Open: o.merger.Open, Seed: o.merger.Seed}
	task := o.Begin("verifying the merge")
	got, err := c.VerifyMerge(ctx, r, func(p api.MergeProgress) { task.At(float64(p.Done), float64(p.All), p.What) })
	if err != nil {
		return fmt.Errorf("not verified: %w", err)
	}
	return o.Print(got, func(t *output.Table) {
		t.Line(fmt.Sprintf("verified: %d runs on %s, largest difference %.2g of %.2g allowed", got.Runs, got.Runner, got.MaxDifference, got.Bound))
		t.Line(fmt.Sprintf("weights take %s instead of %s, of which %s are shared", output.Bytes(uint64(got.MergedBytes)), output.Bytes(uint64(got.SeparateBytes)), output.Bytes(uint64(got.SharedBytes)))) //nolint:gosec // sizes
	})
}

func (o *Options) run(ctx context.Context, args []string) error {
	members, err := analyze.Members(args[1:])
	if err != nil {
		return err
	}
	directories := map[string]string{}
	for _, m := range members {
		directories[m.Name] = m.Dir
	}
	server, err := trial.Open(o.server, o.repository)
	if err != nil {
		return err
	}
	defer server.Close() //nolint:errcheck // nothing is under way
	task := o.Begin("verifying the merge")
	o.merger.Progress = func(done, total int, what string) { task.At(float64(done), float64(total), what) }
	m, err := merger.Verify(ctx, args[0], directories, server, o.merger)
	if err != nil {
		return fmt.Errorf("not verified: %w", err)
	}
	return o.Print(m.Verification, func(t *output.Table) {
		t.Line(fmt.Sprintf("verified: %d runs on %s, largest difference %.2g of %.2g allowed", m.Verification.Runs, m.Verification.Runner, m.Verification.MaxDifference, m.Verification.Bound))
	})
}
