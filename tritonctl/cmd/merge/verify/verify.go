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
		Use:   "verify MERGE MODEL MODEL... --triton HOST:PORT --repository DIRECTORY",
		Short: "Run a merge beside its members on a Triton, and compare",
		Long: `verify runs the members and the parts of a merge on the same generated rows and
compares what comes out: batches of (1,1), (2,3), (1,max) and (0,n) rows of two
members, each again with other rows of the neighbour, which must change nothing.
It exits 1 where anything differs by more than --bound; only a merge that passed may
serve.

It needs a Triton for trials: started with --model-control-mode=explicit on an empty
repository, which this command may write. Models are copied there, loaded, and taken
away again.`,
		Example: `  tritonctl merge verify /var/tmp/bert /models/ner /models/sentiment --triton localhost:8001 --repository /tmp/trials`,
		Args:    cobra.MinimumNArgs(3),
		RunE:    func(c *cobra.Command, args []string) error { return o.run(c.Context(), args) },
	}
	c.Flags().StringVar(&o.server, "triton", "", "gRPC address of the Triton for trials")
	c.Flags().StringVar(&o.repository, "repository", "", "its model repository")
	c.Flags().Float64Var(&o.merger.Bound, "bound", 1e-5, "largest difference, relative to the largest element of the output")
	c.Flags().Int64Var(&o.merger.Open, "open", 8, "size of dimensions that requests decide, such as a length")
	c.Flags().Uint64Var(&o.merger.Seed, "seed", 1, "seed of the generated rows")
	_ = c.MarkFlagRequired("triton")
	_ = c.MarkFlagRequired("repository")
	return c
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
	o.merger.Progress = func(done, total int, what string) { o.Step("%d of %d: %s", done+1, total, what) }
	m, err := merger.Verify(ctx, args[0], directories, server, o.merger)
	if err != nil {
		return fmt.Errorf("not verified: %w", err)
	}
	o.Done()
	return o.Print(m.Verification, func(t *output.Table) {
		t.Line(fmt.Sprintf("verified: %d runs on %s, largest difference %.2g of %.2g allowed", m.Verification.Runs, m.Verification.Runner, m.Verification.MaxDifference, m.Verification.Bound))
	})
}
