// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// A minitriton as a process of its own stands in for a tritonserver: it serves, can be killed, and comes back with its models.
func TestMinitritonAsAProcess(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "minitriton")
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' minitriton \"$@\"\n", filepath.Join(setting(t, "CONCH_BIN"), "conch-bench"))
	require.NoError(t, os.WriteFile(program, []byte(script), 0o700))
	models := rig.Copies(zoo.Profile{Model: "quick", GPUType: zoo.A100, Beta: time.Millisecond, SLO: time.Second}, 1, 1, 4)
	c := serve(t, rig.ConchOptions{Server: program, Models: models, GPUs: 2})
	caller, err := loadgen.NewGRPC(c.Endpoints(), models.Load(), loadgen.Emulated(16))
	require.NoError(t, err)
	defer caller.Close()
	crowd(t, caller, 4, 10)

	events := admin(t, c)
	require.NoError(t, c.Kill("gpu1"))
	require.ErrorContains(t, c.Kill("gpu7"), "no server")
	crowd(t, caller, 4, 10)
	require.Eventually(t, func() bool {
		all, err := events.Events(t.Context(), 0)
		require.NoError(t, err)
		for _, e := range all {
			if e.Kind == "partition_up" && e.Fields["partition"] == "gpu1" {
				return true
			}
		}
		return false
	}, 30*time.Second, 20*time.Millisecond)
	crowd(t, caller, 4, 10)
}
