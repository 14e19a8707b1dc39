// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pymodels_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/zoo/executions"
)

// interpreter is any Python 3: the emulation needs nothing besides it.
const interpreter = "CONCH_GRPC_PYTHON"

// TestExecutions holds the emulating model to the table that the simulator and minitriton are held to.
func TestExecutions(t *testing.T) {
	python := os.Getenv(interpreter)
	if python == "" {
		t.Skip(interpreter + " is not set: make test sets it")
	}
	cases, err := executions.Cases()
	require.NoError(t, err)
	var in bytes.Buffer
	for _, c := range cases { // what overlaps makes no difference to an execution that has nothing beside it
		if len(c.Others) == 0 {
			cases = append(cases, c)
		}
	}
	overlap := 0.
	for i, c := range cases {
		if i > 0 && len(c.Others) == 0 && len(cases[i-1].Others) > 0 {
			overlap = .5
		}
		others := []map[string]any{}
		for _, o := range c.Others {
			others = append(others, map[string]any{"share": o.Share, "l2": o.L2, "bandwidth": o.Bandwidth, "takes_us": o.Takes.Microseconds()})
		}
		require.NoError(t, json.NewEncoder(&in).Encode(map[string]any{
			"share": c.Share, "knee": c.Knee, "rows": c.Rows, "l2": c.L2, "bandwidth": c.Bandwidth, "others": others,
			"alpha_us": executions.Alpha.Microseconds(), "beta_us": executions.Beta.Microseconds(), "after_us": executions.After.Microseconds(), "overlap": overlap,
		}))
	}
	// Read here, so that the go command knows what the test depends on.
	script, err := os.ReadFile("testdata/executions.py")
	require.NoError(t, err)
	model := filepath.Join(t.TempDir(), "model.py")
	require.NoError(t, os.WriteFile(model, pymodels.Emulate, 0o600))
	command := exec.CommandContext(t.Context(), python, "-c", string(script), model)
	var stderr bytes.Buffer
	command.Stdin, command.Stderr = &in, &stderr
	out, err := command.Output()
	require.NoError(t, err, stderr.String())
	lines := strings.Fields(string(out))
	require.Len(t, lines, len(cases))
	for i, c := range cases {
		var us float64
		_, err := fmt.Sscan(lines[i], &us)
		require.NoError(t, err)
		require.InDelta(t, float64(c.Latency.Nanoseconds())/1e3, us, 1, "%+v", c)
	}
}
