// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package analyze is `tritonctl merge analyze`.
package analyze

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	all    string
	gpu    string
	merger merger.Options
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "analyze MODEL MODEL...",
		Short: "Say what models share, and what merging them would save",
		Long: `analyze reads the graphs of models on this machine: model directories, of which the
latest version with a model.onnx counts, or ONNX files. It needs no Triton and no
conch. It says what they compute alike, what each way to merge them would take of
memory, and for every refusal its reason. Nothing is written.

With --all it looks through a directory for model.onnx and other ONNX files and
says which of them are worth a group.`,
		Example: `  tritonctl merge analyze /models/ner /models/sentiment
  tritonctl merge analyze --all /models -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if o.all == "" && len(args) < 2 || o.all != "" && len(args) > 0 {
				return errors.New("two models or more, or --all DIRECTORY")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return o.run(c.Context(), args) },
	}
	c.Flags().StringVar(&o.gpu, "gpu", "", "predict times on this type of GPU, such as A100, with the estimator")
	c.Flags().IntVar(&o.merger.Rows, "rows", 8, "rows per model for which times are predicted")
	c.Flags().StringVar(&o.all, "all", "", "look through this directory")
	c.Flags().Float64Var(&o.merger.MinShared, "min-shared", .1, "fraction of the smallest model's weights that makes a group")
	c.Flags().Float64Var(&o.merger.Similarity, "similarity", .4, "fraction of two operators' weights that makes a super-operator")
	c.Flags().Float64Var(&o.merger.Loose, "loose", 0, "fraction of operators by which graphs of one family may differ")
	return c
}

func (o *Options) run(ctx context.Context, args []string) error {
	task := o.Begin("reading weights")
	o.merger.Progress = func(done, total int64) { task.At(float64(done), float64(total), "") }
	if o.gpu != "" {
		var err error
		if o.merger.Cost, err = cost(o.gpu); err != nil {
			return fmt.Errorf("%w: --gpu: %w", factory.ErrUsage, err)
		}
	}
	if o.all != "" {
		return o.sweep(ctx)
	}
	members, err := Members(args)
	if err != nil {
		return err
	}
	a, err := merger.Analyze(ctx, members, o.merger)
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read from
	return errors.Join(o.Print(a.Report, func(t *output.Table) { t.Line(Text(&a.Report)) }), a.Report.Unreadable())
}

// Text is the report as text.
func Text(r *merger.Report) string {
	var b strings.Builder
	_ = r.Text(&b) // a builder never fails
	return strings.TrimRight(b.String(), "\n")
}

// Members finds the models of the arguments; of two with the same name the second is called by its path.
func Members(args []string) ([]merger.Member, error) {
	var members []merger.Member
	seen := map[string]bool{}
	for _, path := range args {
		m, err := merger.Find(path)
		if err != nil {
			return nil, err
		}
		if seen[m.Name] {
			m.Name = path
		}
		seen[m.Name] = true
		members = append(members, m)
	}
	return members, nil
}

// sweep is what --all prints.
type sweep struct {
	merger.Report
	Groups []group `json:"groups"`
}

// group is models that are worth a merge.
type group struct {
	Members []string            `json:"members"`
	Modes   []merger.ModeReport `json:"modes"`
}

func (o *Options) sweep(ctx context.Context) error {
	paths, err := find(o.all)
	if err != nil {
		return err
	}
	members, err := Members(paths)
	if err != nil {
		return err
	}
	groups, report, err := merger.Candidates(ctx, members, o.merger)
	if err != nil {
		return err
	}
	s := sweep{Report: report, Groups: []group{}}
	for _, g := range groups {
		a, err := merger.Analyze(ctx, g, o.merger)
		if err != nil {
			return err
		}
		var names []string
		for _, m := range g {
			names = append(names, m.Name)
		}
		s.Groups = append(s.Groups, group{Members: names, Modes: a.Report.Modes})
		if err := a.Close(); err != nil {
			return err
		}
	}
	printing := o.Print(s, func(t *output.Table) {
		t.Line(Text(&s.Report))
		if len(s.Groups) == 0 {
			t.Line("no two of them are worth a group")
		}
		for _, g := range s.Groups {
			t.Line("\ngroup: " + strings.Join(g.Members, " "))
			t.Line(Text(&merger.Report{Modes: g.Modes}))
		}
	})
	return errors.Join(printing, s.Report.Unreadable())
}

// find lists the model directories and ONNX files below a directory.
func find(dir string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() || filepath.Ext(path) != ".onnx":
			return nil
		case filepath.Base(path) == merger.GraphFile:
			model := filepath.Dir(filepath.Dir(path))
			if m, err := merger.Find(model); err == nil && m.Graph == path {
				paths = append(paths, model)
				return nil
			}
			if m, err := merger.Find(model); err == nil && m.Dir != "" {
				return nil // an older version of a model
			}
		}
		paths = append(paths, path)
		return nil
	})
	return paths, err
}
