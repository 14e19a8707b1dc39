// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/e2e/conformance"
	"github.com/conch-serving/conch/internal/rig"
)

// free are the cases that say what runs together in a server without Conch. Here Conch decides, by what it has learnt of the model so
// far: they may pass or not.
var free = map[string]string{
	"batching/without dynamic_batching every request runs alone": "Conch batches requests of every model whose max_batch_size allows it",
	"batching/what queues during an execution runs together":     "Conch's discipline decides when a batch starts",
}

// differences are the cases in which Conch answers otherwise than Triton, each with its reason. Everything else of the suite is required.
// TestConch fails when one of them passes: then its line has to go.
var differences = map[string]string{
	// By design.
	"http/config of a batching model":                                               "Triton's own batching is taken out of the configuration that Triton loads",
	"statistics/a model's error in its answer is a success, an exception a failure": "a request that its caller saw fail is a failure, whichever way the model said so",
	// Not yet.
	"statistics/a refused request is not counted":   "a request that Triton refuses after Conch has queued it counts as failed",
	"repository/unload and load":                    "a model that was unloaded is answered like one that was never loaded: NOT_FOUND, but without 'has no available versions'",
	"repository/load with a config that is no JSON": "models come from the operator's repository: load takes no config",
	"repository/load with another config":           "models come from the operator's repository: load takes no config",
}

// Addresses of the Conch that TestDifferences is to run against, set by TestConch.
const (
	grpcAddress = "CONCH_CONFORMANCE_GRPC"
	httpAddress = "CONCH_CONFORMANCE_HTTP"
)

// TestConch runs the suite against Conch with one partition in front of a real server.
func TestConch(t *testing.T) {
	server, bin := os.Getenv("CONCH_TRITONSERVER"), os.Getenv("CONCH_BIN")
	if server == "" || bin == "" {
		t.Skip("CONCH_TRITONSERVER and CONCH_BIN do not name a tritonserver and Conch's programs; `make test` sets both")
	}
	repo := t.TempDir()
	require.NoError(t, conformance.WriteModels(repo))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conch, err := rig.StartConch(ctx, rig.ConchOptions{Bin: bin, Server: server, Repository: repo, GPUs: 1})
	require.NoError(t, err)
	defer func() {
		if t.Failed() {
			t.Logf("the end of conch's log:\n%s", conch.LogTail())
		}
		require.NoError(t, conch.Close())
		http.DefaultClient.CloseIdleConnections()
	}()
	conformance.Run(t, conformance.Target{
		Name: "conch", GRPC: conch.GRPC, HTTP: conch.HTTP, Skip: func(name string) string { return free[name] + differences[name] },
	})

	// A case that fails fails the test that it is part of, hence another process.
	again := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestDifferences$", "-test.v", "-test.count=1")
	again.Env = append(os.Environ(), grpcAddress+"="+conch.GRPC, httpAddress+"="+conch.HTTP)
	out, err := again.CombinedOutput()
	require.Error(t, err, "not one of the differences is left")
	var want, have []string
	for name := range differences {
		want = append(want, strings.ReplaceAll(name, " ", "_"))
	}
	for _, match := range regexp.MustCompile(`(?m)^ *--- FAIL: TestDifferences/(\S+) `).FindAllStringSubmatch(string(out), -1) {
		have = append(have, match[1])
	}
	require.ElementsMatch(t, want, have, "a case that passes has to be taken off the list of differences")
}

// TestDifferences runs the cases that fail, for TestConch, which wants them to.
func TestDifferences(t *testing.T) {
	if os.Getenv(grpcAddress) == "" {
		t.Skip("TestConch runs it")
	}
	conformance.Run(t, conformance.Target{Name: "conch", GRPC: os.Getenv(grpcAddress), HTTP: os.Getenv(httpAddress), Skip: func(name string) string {
		if differences[name] != "" {
			return ""
		}
		return "required, TestConch runs it"
	}})
}
