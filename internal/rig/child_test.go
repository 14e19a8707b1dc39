// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A killed server leaves a stub that waits: it ends when the server is stopped, and with it the pipe that only it writes.
func TestStopGroupEndsWhatAKilledServerLeft(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	c, err := start("server", filepath.Join(dir, "log"), "/bin/sh", []string{"-c", `(echo waits; exec sleep 30) >"$FIFO" & exec sleep 30`}, []string{"FIFO=" + fifo})
	require.NoError(t, err)
	stub, err := os.Open(fifo)
	require.NoError(t, err)
	defer func() { _ = stub.Close() }() // only read
	reader := bufio.NewReader(stub)
	_, err = reader.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, c.cmd.Process.Kill())
	<-c.done

	require.NoError(t, c.stopGroup(time.Minute))
	require.NoError(t, stub.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.ReadAll(reader)
	require.NoError(t, err, "the stub still runs")
}
