// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package evaluations is the child process that evaluates plans, for policies and
// for the loop that weighs them: both sides of it.
package evaluations

import (
	"context"
	"io"
	"os/exec"
	"runtime"
	"runtime/debug"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// evaluatorBytes is what the evaluating process tries to stay below.
const evaluatorBytes = 512 << 20

// Word is the command of this program that calls Serve.
const Word = "evaluate"

// Serve evaluates plans until in ends: on one core at the lowest priority, so that
// requests do not notice it. Check says why the queue would refuse a discipline.
func Serve(ctx context.Context, in io.Reader, out io.Writer, check func(*policy.Dispatch) error) error {
	runtime.GOMAXPROCS(1)
	debug.SetMemoryLimit(evaluatorBytes)
	if err := lowestPriority(); err != nil {
		return err
	}
	return evaluate.Serve(ctx, in, out, check)
}

// Child runs Serve in a process of its own, with program, which is this one.
func Child(program string) *evaluate.Child {
	return evaluate.NewChild(func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, program, Word)
		cmd.Env = []string{}
		cmd.SysProcAttr = ownGroup()
		return cmd
	}, nil)
}
