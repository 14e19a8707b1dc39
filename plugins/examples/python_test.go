// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// interpreter is a Python with grpcio-tools; "make test" sets it up and names it here.
const interpreter = "CONCH_GRPC_PYTHON"

// built is a folder with the example, its generated messages, and a program that runs it.
func built(t *testing.T) string {
	t.Helper()
	python := os.Getenv(interpreter)
	if python == "" {
		t.Skipf("%s names no Python with grpcio-tools; make test does", interpreter)
	}
	dir := t.TempDir()
	source, err := os.ReadFile("python/policy.py")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy.py"), source, 0o600))
	contract, err := filepath.Abs("../policy")
	require.NoError(t, err)
	generate := exec.CommandContext(t.Context(), python, "-m", "grpc_tools.protoc", "-I", contract, "--python_out="+dir, "--grpc_python_out="+dir, "policy.proto")
	out, err := generate.CombinedOutput()
	require.NoError(t, err, "%s", out)
	program := filepath.Join(dir, "spread")
	require.NoError(t, os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\nexec %q %q\n", python, filepath.Join(dir, "policy.py")), 0o700)) //nolint:gosec // a program has to be executable
	return program
}

func TestPythonConforms(t *testing.T) {
	program := built(t)
	// Two processes answer the whole suite: starting an interpreter takes longer than planning.
	var made []policy.Policy
	conformance.Run(t, conformance.Options{New: func(t *testing.T) policy.Policy {
		made = append(made, conformance.Process(t, program))
		return made[len(made)-1]
	}})
}

// evaluator says that whatever has more instances serves more.
type evaluator struct{ asked int }

func (e *evaluator) Evaluate(_ context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	var all []*policy.Outcome
	for _, p := range plans {
		e.asked++
		instances := 0
		for _, part := range p.GetPartitions() {
			instances += len(part.GetInstances())
		}
		all = append(all, &policy.Outcome{Goodput: float64(instances)})
	}
	return all, nil
}

// EvaluateDraw implements policy.Host.
func (e *evaluator) EvaluateDraw(ctx context.Context, _ uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return e.Evaluate(ctx, plans...)
}

func TestPythonEvaluates(t *testing.T) {
	spread := conformance.Process(t, built(t))
	s := packtest.World(2).Line("m", 1, 4, 40, 100).Snapshot
	s.Evaluations = 2
	e := &evaluator{}
	p, err := spread.Plan(t.Context(), s, e)
	require.NoError(t, err)
	require.Equal(t, 2, e.asked)
	require.Len(t, p.PartitionsOf("m"), 2, "the second place serves more")

	s.Evaluations = 0
	p, err = spread.Plan(t.Context(), s, e)
	require.NoError(t, err)
	require.Len(t, p.PartitionsOf("m"), 1)
}
