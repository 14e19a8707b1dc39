// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProcessorTimeOfAGroup: what a worker takes counts for its master, and nothing else does.
func TestProcessorTimeOfAGroup(t *testing.T) {
	// The worker is done with its work once it prints, and lives until its input ends.
	master := exec.Command("sh", "-c", `sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo; read x' <&3 & wait`)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	master.ExtraFiles = []*os.File{read}
	master.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := master.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, master.Start())
	defer func() {
		require.NoError(t, write.Close())
		require.NoError(t, master.Wait())
	}()
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)

	seconds, err := pids{os.Getpid(), master.Process.Pid, -master.Process.Pid}.processorTime()
	require.NoError(t, err)
	require.Greater(t, seconds[serverProcess], seconds[proxyProcess]+.02, "the group's, over the master's own")

	_, err = pids{0, -1 << 30, 0}.processorTime()
	require.ErrorContains(t, err, "processor time of the proxy: no process is in the group")
}
