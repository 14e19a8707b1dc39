// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPoliciesLiveAsSimulated runs what `make bench BENCH=policies-live` measures, for a part of its time: a policy takes over under load on real
// tritonservers that emulate partitions with interference, every answer is right, and on a machine with time for it what is served is what the simulator says.
// Beside other tests timers are late, what is late is bad, and a bound on that would say something of the machine.
func TestPoliciesLiveAsSimulated(t *testing.T) {
	t.Parallel()
	policies := []string{"gpulet"}
	if !testing.Short() {
		policies = append(policies, "usher", "symphony", "infaas", "conch")
	}
	for _, name := range policies {
		quiet := watchQuiet(t)
		figures := measured(t, "policies-live", "--only", "policies_live."+name, "--quick")
		require.Positive(t, figures["policies_live."+name+".goodput"], name)
		require.Positive(t, figures["policies_live."+name+".overload.goodput"], name)
		if !quiet() {
			continue
		}
		require.InDelta(t, 1, figures["policies_live."+name+".goodput_ratio"], .05, name)
		require.InDelta(t, 1, figures["policies_live."+name+".overload.goodput_ratio"], .05, name)
		require.Positive(t, figures["policies_live."+name+".overload.simulated_bad"], "%s: where nothing is bad, nothing is compared", name)
	}
}

// measured are the figures that conch-bench prints.
func measured(t *testing.T, arguments ...string) map[string]float64 {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(setting(t, "CONCH_BIN"), "conch-bench"), append(arguments, "--tritonserver", setting(t, "CONCH_TRITONSERVER"), "--results", t.TempDir())...)
	var out, progress bytes.Buffer
	command.Stdout, command.Stderr = &out, &progress
	require.NoError(t, command.Run(), "%s", progress.String())
	t.Log(progress.String())
	all := map[string]float64{}
	for line := range strings.Lines(out.String()) {
		var name, unit string
		var value float64
		if _, err := fmt.Sscanf(line, "figure %s %g %s", &name, &value, &unit); err == nil {
			all[name] = value
		}
	}
	return all
}
