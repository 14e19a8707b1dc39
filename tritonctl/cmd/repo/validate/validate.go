// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package validate is `tritonctl repo validate`.
package validate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/tritonctl/estimating"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// ErrInvalid is the failure of a repository in which a model would not load.
var ErrInvalid = errors.New("not every model would load")

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var gpu string
	var newer bool
	c := &cobra.Command{
		Use:   "validate DIRECTORY",
		Short: "Say what Triton would refuse of a model repository",
		Long: `validate reads a model repository on this machine, without Triton and without
conch, and lists what a Triton that completes no configurations by itself (as conch
starts it) would refuse, with file and line, and what is probably not meant. It
exits 1 where a model would not load. It cannot know what only running it shows:
which backends are installed, what a model.py does, GPUs, memory, and files outside
the repository. A field that it does not know is an error, as for a Triton that does
not know it; with --newer-fields it is a warning. With --gpu it estimates every ONNX
model, and warns of what does not fit that GPU type's memory, and of what cannot be
estimated.`,
		Example: `tritonctl repo validate /models
tritonctl repo validate /models --gpu T4`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return run(f, args[0], gpu, repo.Strictness{Newer: newer})
		},
	}
	c.Flags().StringVar(&gpu, "gpu", "", "GPU type whose memory the models have to fit, such as T4 or A100-80GB")
	c.Flags().BoolVar(&newer, "newer-fields", false, "let fields pass that a newer Triton may know")
	return c
}

func run(f *factory.Factory, directory, gpu string, s repo.Strictness) error {
	if info, err := os.Stat(directory); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no directory %s on this machine; give that of a model repository", factory.ErrUsage, directory)
	} else if err != nil {
		return fmt.Errorf("%w: %w", factory.ErrUsage, err)
	} else if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a directory; give that of a model repository", factory.ErrUsage, directory)
	} else if isModel(directory) {
		return fmt.Errorf("%w: %s has a config.pbtxt itself, so it is a model; give the directory that it lies in, the model repository", factory.ErrUsage, directory)
	}
	problems, err := repo.ValidateAll(modeldir.FS(directory), s)
	if err != nil {
		return err
	}
	if gpu != "" {
		more, err := estimated(directory, gpu)
		if err != nil {
			return err
		}
		problems = append(problems, more...)
	}
	if problems == nil {
		problems = []repo.Problem{} // an empty list, not null
	}
	if err := f.Print(problems, func(t *output.Table) { draw(t, problems) }); err != nil {
		return err
	}
	for _, p := range problems {
		if p.Severity == repo.SeverityError {
			return ErrInvalid
		}
	}
	return nil
}

func draw(t *output.Table, problems []repo.Problem) {
	if len(problems) == 0 {
		t.Line("nothing is wrong")
	}
	for _, p := range problems {
		t.Line(string(p.Severity) + ": " + p.Error())
	}
}

// estimated warns of ONNX models that do not fit a GPU type, or that cannot be estimated.
func estimated(directory, gpu string) ([]repo.Problem, error) {
	if _, err := estimator.NewDevice(gpu, ""); err != nil {
		return nil, fmt.Errorf("%w: --gpu: %w", factory.ErrUsage, err)
	}
	models, _, err := estimating.All(directory) // what cannot be found is a problem already
	if err != nil {
		return nil, err
	}
	var problems []repo.Problem
	for _, m := range models {
		if filepath.Ext(m.File) != ".onnx" {
			continue
		}
		file, err := filepath.Rel(directory, m.File)
		if err != nil {
			return nil, err
		}
		warn := func(text string) {
			problems = append(problems, repo.Problem{Severity: repo.SeverityWarning, File: filepath.ToSlash(file), Text: text})
		}
		e, err := m.Estimate(gpu)
		switch {
		case err != nil:
			warn("it cannot be estimated: " + err.Error())
		case !e.Fits:
			warn(e.DoesNotFit())
		}
	}
	return problems, nil
}

// isModel says whether a directory is a model's and no repository: a config.pbtxt lies in it, and in none of its directories.
func isModel(directory string) bool {
	root := os.DirFS(directory)
	own, _ := fs.Glob(root, "config.pbtxt") // the pattern is a good one
	models, _ := fs.Glob(root, "*/config.pbtxt")
	return len(own) > 0 && len(models) == 0
}
