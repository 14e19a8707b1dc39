// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// The test binary is also a policy, which conch starts as a plugin, and a minitriton, which conch starts as a server.
func TestMain(m *testing.M) {
	if rig.AsMinitriton() {
		return
	}
	if policy.Hosted(os.Getenv) {
		policy.Serve(moody{})
		return
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// setting is a variable that make sets. Without it there is no real server to test against, and that is a failure: a test that passes
// proves what it says.
func setting(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	require.NotEmpty(t, value, "%s is not set: run `make e2e`, which installs a tritonserver, builds conch and says where they are", name)
	_, err := os.Stat(value)
	require.NoError(t, err, "%s names what is not there: run `make e2e`, which sets it up", name)
	return value
}

// repository writes a model repository with these models of e2e/models.
func repository(t *testing.T, models ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range models {
		copyFile(t, filepath.Join("models", name, "config.pbtxt"), filepath.Join(dir, name, "config.pbtxt"))
		var code []byte
		switch name {
		case "emulated":
			code = pymodels.Emulate
		case "fragile":
			code = pymodels.Fragile
		default:
			code = pymodels.ONNX
			copyFile(t, graph(t, name), filepath.Join(dir, name, "1", "model.onnx"))
		}
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name, "1"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "1", "model.py"), code, 0o644))
	}
	return dir
}

// graph is the path of a generated ONNX file.
func graph(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(setting(t, "CONCH_GRAPHS"), name+".onnx")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	require.NoError(t, os.WriteFile(to, data, 0o644))
}

// start runs conch on the real server with these models of e2e/models on a number of emulated GPUs, and ends it with the test.
func start(t *testing.T, gpus int, settings map[string]any, models ...string) *rig.Conch {
	t.Helper()
	return serve(t, rig.ConchOptions{Repository: repository(t, models...), GPUs: gpus, Settings: settings})
}

// serve runs conch, on the real server unless the options name another, ends it with the test, and requires that nothing of it is left then.
func serve(t *testing.T, o rig.ConchOptions) *rig.Conch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o.Bin = setting(t, "CONCH_BIN")
	if o.Server == "" {
		o.Server = setting(t, "CONCH_TRITONSERVER")
	}
	c, err := rig.StartConch(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of conch's log:\n%s", c.LogTail())
		}
		left := remainsOf(t, c)
		require.NoError(t, c.Close())
		left.requireGone(t, c)
	})
	return c
}

func admin(t *testing.T, c *rig.Conch) *client.Client {
	t.Helper()
	a, err := client.New(c.Admin)
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

func triton(t *testing.T, c *rig.Conch) tritonpb.GRPCInferenceServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return tritonpb.NewGRPCInferenceServiceClient(conn)
}

// atLeast is how many requests a load has at the least: with fewer a test would say little about requests.
const atLeast = 60

// underLoad offers emulated a steady load, runs meanwhile once requests are answered, and ends the load when meanwhile has returned and enough
// requests have been answered after that, so that what meanwhile did is used too. It returns the outcome of the requests.
func underLoad(t *testing.T, c *rig.Conch, rate float64, meanwhile func()) *loadgen.Result {
	t.Helper()
	models := []loadgen.Model{{Name: "emulated", SLO: 400 * time.Millisecond}}
	caller, err := loadgen.NewGRPC(c.Endpoints(), models, loadgen.Emulated(16))
	require.NoError(t, err)
	defer caller.Close()
	counting := &answers{Caller: caller, changed: make(chan struct{}, 1)}
	end, done := make(chan struct{}), make(chan error, 1)
	var result *loadgen.Result
	go func() {
		var err error
		result, err = loadgen.Run(t.Context(), loadgen.Load{Models: models, Rate: rate, Measure: 5 * time.Minute, Until: end, Patience: time.Minute, Seed: 1},
			counting, clock.System())
		done <- err
	}()
	ended := sync.OnceFunc(func() { close(end) })
	defer ended() // if meanwhile fails the test
	counting.await(t, 20)
	meanwhile()
	counting.await(t, max(atLeast, counting.n.Load()+20))
	ended()
	require.NoError(t, <-done)
	return result
}

// answers counts calls that have been answered.
type answers struct {
	loadgen.Caller
	n       atomic.Int64
	changed chan struct{}
}

func (a *answers) Call(ctx context.Context, model int, sequence uint64) error {
	err := a.Caller.Call(ctx, model, sequence)
	a.n.Add(1)
	select {
	case a.changed <- struct{}{}:
	default:
	}
	return err
}

// await returns once n calls have been answered.
func (a *answers) await(t *testing.T, n int64) {
	t.Helper()
	for patience := time.After(2 * time.Minute); a.n.Load() < n; {
		select {
		case <-a.changed:
		case <-patience:
			require.FailNow(t, "no answers", "%d of %d calls were answered", a.n.Load(), n)
		}
	}
}

// requireAllAnswered is: every request got its right answer, late or not.
func requireAllAnswered(t *testing.T, r *loadgen.Result) {
	t.Helper()
	failed, wrong, first := r.Faults()
	require.Zero(t, failed, "first error: %v", first)
	require.Zero(t, wrong, "first wrong answer: %v", first)
	for _, m := range r.Models {
		require.GreaterOrEqual(t, m.Sent, atLeast)
		_, all := m.Quantile(1)
		require.True(t, all, "every request was answered before its caller's patience ended")
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// sharedExecutions counts a model's executions of four rows and more, those of warm-up too.
func sharedExecutions(t *testing.T, triton tritonpb.GRPCInferenceServiceClient, model string) (n uint64) {
	t.Helper()
	r, err := triton.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: model})
	require.NoError(t, err)
	for _, m := range r.ModelStats {
		for _, b := range m.BatchStats {
			if b.BatchSize >= 4 {
				n += b.ComputeInfer.Count
			}
		}
	}
	return n
}

// partitions lists what tritonctl gpu ls shows.
func partitions(t *testing.T, a *client.Client) []api.Partition {
	t.Helper()
	gpus, err := a.GPUs(t.Context())
	require.NoError(t, err)
	var all []api.Partition
	for _, g := range gpus {
		all = append(all, g.Partitions...)
	}
	return all
}

// eventKinds lists the kinds of events after id since.
func eventKinds(t *testing.T, a *client.Client, since uint64) []string {
	t.Helper()
	events, err := a.Events(t.Context(), since)
	require.NoError(t, err)
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, string(e.Kind)+": "+e.Message)
	}
	return kinds
}

func lastEvent(t *testing.T, a *client.Client) uint64 {
	t.Helper()
	events, err := a.Events(t.Context(), 0)
	require.NoError(t, err)
	require.NotEmpty(t, events)
	return events[len(events)-1].ID
}
