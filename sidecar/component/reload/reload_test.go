// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reload_test

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/component/reload"
	"github.com/conch-serving/conch/sidecar/config"
)

// TestSIGHUPDoesNotEndAConchThatStops: this component ends first, while requests are still answered. The test runs itself as the process.
func TestSIGHUPDoesNotEndAConchThatStops(t *testing.T) {
	const child = "CONCH_TEST_RELOAD"
	if os.Getenv(child) == "" {
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$") //nolint:gosec // this program
		command.Env = append(os.Environ(), child+"=1")
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	loaded := make(chan struct{}, 1)
	load := func() (*config.Config, error) { loaded <- struct{}{}; return nil, os.ErrNotExist }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	r := reload.New(load, nil, nil)
	go func() { ended <- r.Run(ctx) }()
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	time.Sleep(100 * time.Millisecond) // it would have ended this process
	require.Empty(t, loaded)
}
