// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
)

// tritonctl runs the program as a person does, and returns all it prints and its exit code.
func tritonctl(t *testing.T, c *rig.Conch, arguments ...string) (out string, code int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(setting(t, "CONCH_BIN"), "tritonctl"), arguments...)
	command.Env = append(os.Environ(), "CONCH_ADMIN="+c.Admin)
	data, err := command.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(data), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(data), 0
}
