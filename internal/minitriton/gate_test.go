// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/minitriton"
)

// An execution that meets a closed gate says so by a file and goes on once that is removed; one that comes after it has opened does not wait.
func TestGate(t *testing.T) {
	repo, gate := t.TempDir(), t.TempDir()
	write(t, repo, "m", slow(0)+fmt.Sprintf(` parameters { key: "conch_gate" value { string_value: %q } }`, gate))
	_, c := start(t, minitriton.Options{Repository: repo, Load: []string{"m"}})
	closed := filepath.Join(gate, "closed")
	require.NoError(t, os.WriteFile(closed, nil, 0o600))
	answer := make(chan error, 1)
	go func() {
		_, err := infer(t.Context(), c, "m")
		answer <- err
	}()
	var begun []string
	require.Eventually(t, func() bool {
		begun, _ = filepath.Glob(filepath.Join(gate, "begun-*")) // the pattern is right
		return len(begun) == 1
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, os.Remove(closed))
	require.Empty(t, answer, "who waits goes on only when its own file is gone")
	require.NoError(t, os.Remove(begun[0]))
	require.NoError(t, <-answer)
	_, err := infer(t.Context(), c, "m")
	require.NoError(t, err)
}
