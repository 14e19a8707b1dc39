// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/e2e/conformance"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a target on a repository of the suite's models, and ends it with the test.
type start func(t *testing.T, repository string) conformance.Target

// targets are what the suite runs against, by the names in docs/compatibility.md.
func targets() map[string]start {
	return map[string]start{
		"tritonserver":         server(tritonserver),
		"minitriton":           server(embedded),
		"conch tritonserver 1": conch(tritonserver, 1),
		"conch tritonserver 3": conch(tritonserver, 3),
		"conch minitriton 1":   conch(embedded, 1),
		"conch minitriton 3":   conch(embedded, 3),
		"conch attach observe": attach("observe"),
		"conch attach control": attach("control"),
	}
}

// everyPush reports whether a target is tested with -short too: the real server, which holds the suite to the truth, minitriton, which
// stands for it in other tests, and Conch with several real servers, which is all of Conch. The others differ in how Conch has its servers.
func everyPush(target string) bool {
	return target == "tritonserver" || target == "minitriton" || target == "conch tritonserver 3"
}

// embedded is minitriton.
func embedded(*testing.T) string { return "" }

// tritonserver is the path of a real server.
func tritonserver(t *testing.T) string { return setting(t, "CONCH_TRITONSERVER") }

// setting is a variable that make sets. Without it there is nothing to test against.
func setting(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Skipf("%s is not set; `make test` sets it", name)
	}
	return value
}

// server is a server without Conch: it has no differences.
func server(path func(*testing.T) string) start {
	return func(t *testing.T, repository string) conformance.Target {
		return straight(t, serve(t, path(t), repository), func() *rig.Server { return serve(t, path(t), repository) })
	}
}

// straight is a server as a target, and another one should it end.
func straight(t *testing.T, s *rig.Server, another func() *rig.Server) conformance.Target {
	return conformance.Target{GRPC: s.GRPC, HTTP: s.HTTP, Metrics: s.Metrics, Again: func() (conformance.Target, bool) {
		if !s.Ended() {
			return conformance.Target{}, false
		}
		t.Logf("the server has ended; the end of its log:\n%s", s.LogTail())
		return straight(t, another(), another), true
	}}
}

// serve starts a server that has loaded nothing.
func serve(t *testing.T, path, repository string) *rig.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s, err := rig.StartServer(ctx, rig.ServerOptions{Server: path, Repository: repository})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", s.LogTail())
		}
		require.NoError(t, s.Close())
	})
	return s
}

// conch is Conch with partitions that each serve every model of the suite.
func conch(path func(*testing.T) string, partitions int) start {
	return func(t *testing.T, repository string) conformance.Target {
		return front(t, rig.ConchOptions{
			Server: path(t), Repository: repository, GPUs: partitions, Settings: map[string]any{"modelControl": map[string]any{"clients": "files"}},
		})
	}
}

// attach is Conch in front of one real server that others run: in mode observe it passes on what that serves, in mode control it decides
// what that serves.
func attach(mode string) start {
	return func(t *testing.T, repository string) conformance.Target {
		o := rig.ConchOptions{Mode: mode}
		if mode == "observe" {
			o.Attach = []*rig.Server{serve(t, tritonserver(t), repository)}
			loadAll(t, o.Attach[0].GRPC)
		} else {
			o.Attach, o.Repository = []*rig.Server{serve(t, tritonserver(t), t.TempDir())}, repository
		}
		return front(t, o)
	}
}

// loadAll loads the suite's models through the server's own repository API.
func loadAll(t *testing.T, address string) {
	t.Helper()
	client, err := triton.Dial(address)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	names, err := conformance.ModelNames()
	require.NoError(t, err)
	for _, name := range names {
		require.NoError(t, client.Load(t.Context(), name))
	}
}

// front starts a Conch and ends it with the test.
func front(t *testing.T, o rig.ConchOptions) conformance.Target {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o.Bin = setting(t, "CONCH_BIN")
	if o.Settings == nil {
		o.Settings = map[string]any{}
	}
	// Its executions wait in a gate until every partition has one: a discipline that keeps a partition for models which cannot wait so long would never get there.
	o.Settings["models"] = map[string]any{"queued": map[string]any{"discipline": "eager"}}
	c, err := rig.StartConch(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of conch's log:\n%s", c.LogTail())
		}
		require.NoError(t, c.Close())
	})
	return conformance.Target{GRPC: c.GRPC, HTTP: c.HTTP, Pending: c.Metrics, Partitions: o.GPUs, Loaded: true}
}

// TestTargets runs the suite against every target. The real server holds the suite itself to the truth. With -update the verdicts of the
// targets that passed are recorded for docs/compatibility.md.
func TestTargets(t *testing.T) {
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var mu sync.Mutex
	ran := map[string]map[string]conformance.Verdict{}
	version := ""
	t.Run("all", func(t *testing.T) { // returns when all of them have
		for name, start := range targets() {
			t.Run(name, func(t *testing.T) {
				if testing.Short() && !everyPush(name) {
					t.Skip("-short: `make test-all` runs it")
				}
				t.Parallel()
				repository := t.TempDir()
				require.NoError(t, conformance.WriteModels(repository))
				began := time.Now()
				target := start(t, repository)
				target.Name, target.Gates = name, conformance.Gates(repository)
				target.Differences = conformance.DifferencesOf(name)
				t.Logf("started in %v", time.Since(began).Round(time.Millisecond))
				runs := versionOf(t, target.GRPC)
				verdicts := conformance.Run(t, target)
				mu.Lock()
				defer mu.Unlock()
				if !t.Failed() {
					ran[name] = verdicts
				}
				if name == "tritonserver" {
					version = runs
				}
			})
		}
	})
	if *update {
		record(t, ran, version)
	}
}

// versionOf is what a server says of itself.
func versionOf(t *testing.T, address string) string {
	t.Helper()
	client, err := triton.Dial(address)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	metadata, err := client.Metadata(t.Context())
	require.NoError(t, err)
	return metadata.Version
}

// Every case has a name of its own in a group that exists, and every difference is that of a case and says what there is to say.
func TestTables(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range conformance.Cases() {
		require.False(t, seen[c.Name], "case %q twice", c.Name)
		seen[c.Name] = true
	}
	listed := map[string]bool{}
	for _, d := range conformance.Differences() {
		require.True(t, seen[d.Case], "no such case: %q", d.Case)
		require.False(t, listed[d.Case], "%q is listed twice", d.Case)
		listed[d.Case] = true
		require.NotEmpty(t, d.Reason, d.Case)
		require.True(t, strings.HasSuffix(d.Docs, "."), "%q: Docs is a sentence", d.Case)
	}
}
