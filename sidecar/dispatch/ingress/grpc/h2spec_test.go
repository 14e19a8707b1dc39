// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"encoding/xml"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
)

// h2spec runs h2spec on the front and returns the cases that fail, and how many pass.
func h2spec(t *testing.T, program string, grpcOnly bool) (failed map[string]bool, passed int) {
	s := front.New(front.Options{Inferer: &path{methods: make(chan string, 1000)}, Aggregator: &control{}, GRPC: grpcOnly})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	defer func() { s.Stop(); <-done }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	report := filepath.Join(t.TempDir(), "report.xml")
	out, err := exec.CommandContext(t.Context(), program, "--host", "127.0.0.1", "--port", port, "--timeout", "2", "--junit-report", report).CombinedOutput()
	if _, ok := err.(*exec.ExitError); err != nil && !ok { //nolint:errorlint // exec gives it bare
		require.NoError(t, err, "%s", out)
	}
	text, err := os.ReadFile(report)
	require.NoError(t, err, "%s", out)
	var suites struct {
		Suites []struct {
			Cases []struct {
				Package string    `xml:"package,attr"`
				Class   string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(text, &suites), "%s", text)
	failed = map[string]bool{}
	for _, suite := range suites.Suites {
		for _, c := range suite.Cases {
			if c.Failure != nil || c.Error != nil {
				failed[c.Package+": "+c.Class] = true
			} else {
				passed++
			}
		}
	}
	return failed, passed
}

// The front passes every case of h2spec that grpc-go passes. Run it by `make h2spec`.
func TestH2Spec(t *testing.T) {
	program := os.Getenv("CONCH_H2SPEC")
	if program == "" {
		t.Skip("CONCH_H2SPEC names no h2spec: see `make h2spec`")
	}
	theirs, passes := h2spec(t, program, true)
	require.Greater(t, passes, 100, "h2spec reached the server")
	ours, more := h2spec(t, program, false)
	t.Logf("of h2spec's cases grpc-go passes %d and fails %d, the front passes %d and fails %d", passes, len(theirs), more, len(ours))
	for c := range ours {
		t.Logf("fails: %s", c)
		require.True(t, theirs[c], "only the front fails %q", c)
	}
}
