// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package emit is `tritonctl merge emit`.
package emit

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/tritonctl/cmd/merge/analyze"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	to, name, mode string
	merger         merger.Options
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "emit MODEL MODEL... --to DIRECTORY",
		Short: "Write the merge of models: a model directory for each part, and a manifest",
		Long: `emit writes what analyze found feasible: with mode backbone one model that computes
what all members have in common and a head for each, with superop or superop-padded
one graph of two members. Parts keep the members' backend, instances and files. The
directory gets a manifest, merge.json, and must not exist yet. What is written is not
verified; tritonctl merge verify does that.`,
		Example: `  tritonctl merge emit /models/ner /models/sentiment --name bert --to /var/tmp/bert`,
		Args:    cobra.MinimumNArgs(2),
		RunE:    func(c *cobra.Command, args []string) error { return o.run(c.Context(), args) },
	}
	c.Flags().StringVar(&o.to, "to", "", "directory to make")
	c.Flags().StringVar(&o.name, "name", "merged", "name of the merge and of its first part")
	c.Flags().StringVar(&o.mode, "mode", string(merger.Backbone), "backbone, superop or superop-padded")
	c.Flags().Float64Var(&o.merger.MinShared, "min-shared", .1, "fraction of the smallest model's weights that makes a group")
	c.Flags().Float64Var(&o.merger.Similarity, "similarity", .4, "fraction of two operators' weights that makes a super-operator")
	_ = c.MarkFlagRequired("to")
	return c
}

func (o *Options) run(ctx context.Context, args []string) error {
	task := o.Begin("reading weights")
	o.merger.Progress = func(done, total int64) { task.At(float64(done), float64(total), "") }
	members, err := analyze.Members(args)
	if err != nil {
		return err
	}
	a, err := merger.Analyze(ctx, members, o.merger)
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read from
	o.Begin("writing %s", o.to)
	m, err := a.Emit(ctx, o.to, o.name, merger.Mode(o.mode))
	if err != nil {
		return err
	}
	return o.Print(m, func(t *output.Table) {
		t.Row("PART", "ROLE")
		for _, p := range m.Parts {
			t.Row(p.Name, p.Role)
		}
		t.Line(fmt.Sprintf("%s: weights take %s instead of %s; not verified yet", o.to, output.Bytes(uint64(m.MergedBytes)), output.Bytes(uint64(m.SeparateBytes)))) //nolint:gosec // sizes
	})
}
