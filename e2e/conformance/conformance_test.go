// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/e2e/conformance"
	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMinitriton(t *testing.T) {
	repo := t.TempDir()
	require.NoError(t, conformance.WriteModels(repo))
	s, err := minitriton.New(minitriton.Options{Repository: repo})
	require.NoError(t, err)
	l, err := minitriton.Loopback()
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context(), l))
	defer func() { require.NoError(t, s.Close()) }()
	conformance.Run(t, conformance.Target{Name: "minitriton", GRPC: s.Endpoint().GRPC, HTTP: s.Endpoint().HTTP, Metrics: s.Endpoint().Metrics})
}

// TestTritonserver holds the suite itself to a real server: CONCH_TRITONSERVER is a launcher that takes tritonserver's flags.
func TestTritonserver(t *testing.T) {
	launcher := os.Getenv("CONCH_TRITONSERVER")
	if launcher == "" {
		t.Skip("CONCH_TRITONSERVER does not name a tritonserver; `make test` sets it")
	}
	repo := t.TempDir()
	require.NoError(t, conformance.WriteModels(repo))
	grpc, http, metrics := freePort(t), freePort(t), freePort(t)
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	server := exec.CommandContext(ctx, launcher, "--model-repository="+repo, "--model-control-mode=explicit", "--disable-auto-complete-config",
		"--strict-readiness=false", "--grpc-address=127.0.0.1", "--http-address=127.0.0.1", "--grpc-port="+grpc, "--http-port="+http,
		"--metrics-address=127.0.0.1", "--metrics-port="+metrics, "--exit-timeout-secs=2", "--backend-config=python,shm-region-prefix-name=conch_conformance_"+strconv.Itoa(os.Getpid()))
	server.Stdout, server.Stderr = &log, &log
	server.Cancel = func() error { return server.Process.Signal(syscall.SIGTERM) }
	server.WaitDelay = 10 * time.Second // then SIGKILL; its python stubs follow by themselves
	require.NoError(t, server.Start())
	exited := make(chan error, 1)
	go func() { exited <- server.Wait() }()
	defer func() {
		cancel()
		<-exited
		if t.Failed() {
			t.Logf("the server's log:\n%s", log.String())
		}
		leftovers, err := filepath.Glob("/dev/shm/conch_conformance_" + strconv.Itoa(os.Getpid()) + "*")
		require.NoError(t, err)
		for _, f := range leftovers {
			require.NoError(t, os.Remove(f))
		}
	}()
	client, err := triton.Dial("127.0.0.1:" + grpc)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		select {
		case err := <-exited:
			exited <- err
			return true
		default:
		}
		live, err := client.Live(ctx)
		return err == nil && live
	}, 20*time.Second, 50*time.Millisecond, "the server does not answer")
	require.NoError(t, client.Close())
	conformance.Run(t, conformance.Target{Name: "tritonserver", GRPC: "127.0.0.1:" + grpc, HTTP: "127.0.0.1:" + http, Metrics: "127.0.0.1:" + metrics})
}

// freePort finds a port that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, errors.Join(l.Close())) }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

func TestCaseNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range conformance.Cases() {
		require.False(t, seen[c.Name], "case %q twice", c.Name)
		seen[c.Name] = true
	}
	require.Greater(t, len(seen), 150)
}
