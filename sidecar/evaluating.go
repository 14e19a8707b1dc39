// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// evaluatorBytes is what the evaluating process tries to stay below.
const evaluatorBytes = 512 << 20

// evaluateCommand is the process that evaluates plans for policies: one core at the lowest priority, so that requests do not notice it.
func evaluateCommand(p process) *cobra.Command {
	return &cobra.Command{
		Use: "evaluate", Short: "Evaluate plans for the policy host", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			runtime.GOMAXPROCS(1)
			debug.SetMemoryLimit(evaluatorBytes)
			if err := lowestPriority(); err != nil {
				return err
			}
			return evaluate.Serve(c.Context(), p.stdin, p.stdout, func(d *policy.Dispatch) error {
				return checkDiscipline(d.GetDiscipline(), d.GetParameters(), d.GetDropPolicy())
			})
		},
	}
}

// evaluator runs this program's own evaluateCommand.
func evaluator(self string) *evaluate.Child {
	return evaluate.NewChild(func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, self, "evaluate")
		cmd.Env = []string{}
		cmd.SysProcAttr = ownGroup()
		return cmd
	}, nil)
}
