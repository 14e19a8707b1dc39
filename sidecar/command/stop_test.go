// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/sidecar/component/state"
)

// TestStop: the process that a state directory names is signalled and waited for. Its directory alone says which; with --leave the
// signal is the one that leaves servers to the next conch.
func TestStop(t *testing.T) {
	for name, c := range map[string]struct {
		arguments []string
		want      syscall.Signal
	}{
		"stop":  {nil, syscall.SIGTERM},
		"leave": {[]string{"--leave"}, state.LeaveSignal},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			running := exec.Command("sleep", "600")
			require.NoError(t, running.Start())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = running.Wait() // an error says the signal, which is asked below
			}()
			t.Cleanup(func() {
				_ = running.Process.Kill() // it has ended unless the test failed
				<-ended
			})
			identity, err := shim.Identity(running.Process.Pid)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, state.RunningFile), []byte(identity+"\n"), 0o600))

			var out bytes.Buffer
			stop := command.New(command.Process{Stdout: &out, Stderr: io.Discard})
			stop.SetArgs(append([]string{"stop", "--state", dir}, c.arguments...))
			require.NoError(t, stop.ExecuteContext(t.Context()))
			<-ended
			require.Equal(t, c.want, running.ProcessState.Sys().(syscall.WaitStatus).Signal())
			require.Contains(t, out.String(), "has stopped")
		})
	}
}

// TestStopOfNobody: a directory without a conch, and one whose conch was killed and whose process id another process may have by now.
func TestStopOfNobody(t *testing.T) {
	dir := t.TempDir()
	ordered := func() error {
		stop := command.New(command.Process{Stdout: io.Discard, Stderr: io.Discard})
		stop.SetArgs([]string{"stop", "--state", dir})
		return stop.ExecuteContext(t.Context())
	}
	require.ErrorContains(t, ordered(), "no conch runs on "+dir)
	identity, err := shim.Identity(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, state.RunningFile), []byte(identity+"0\n"), 0o600))
	require.ErrorContains(t, ordered(), "no conch runs on "+dir)
}
