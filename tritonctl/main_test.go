// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asTritonctl makes the test's executable the program.
const asTritonctl = "TRITONCTL_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asTritonctl) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A command that waits for a pipe ends with the first signal, whether the pipe has a writer that writes nothing or none.
func TestACommandEndsWhenItIsInterrupted(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			pipe := filepath.Join(t.TempDir(), "scenario.yaml")
			require.NoError(t, syscall.Mkfifo(pipe, 0o600))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, os.Args[0], "simulate", pipe)
			c.Env = append(os.Environ(), asTritonctl+"=1")
			require.NoError(t, c.Start())
			var writer *os.File
			require.Eventually(t, func() (opened bool) { // it opens as soon as the command reads
				var err error
				writer, err = os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
				return err == nil
			}, time.Minute, 10*time.Millisecond)
			defer writer.Close()
			require.NoError(t, c.Process.Signal(sig))
			err := c.Wait()
			require.NoError(t, ctx.Err(), "it did not end")
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode())
		})
	}
}
