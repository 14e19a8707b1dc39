// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package validate is `tritonctl repo validate`.
package validate

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// ErrInvalid is the failure of a repository in which a model would not load.
var ErrInvalid = errors.New("not every model would load")

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "validate DIRECTORY",
		Short: "Say what Triton would refuse of a model repository",
		Long: `validate reads a model repository on this machine, without Triton and without
conch, and lists what a Triton that completes no configurations by itself (as conch
starts it) would refuse, with file and line, and what is probably not meant. It
exits 1 where a model would not load.`,
		Example: `tritonctl repo validate /models`,
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return run(f, args[0]) },
	}
}

func run(f *factory.Factory, directory string) error {
	if info, err := os.Stat(directory); err != nil {
		return err
	} else if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", directory)
	}
	problems, err := repo.ValidateAll(os.DirFS(directory))
	if err != nil {
		return err
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
