// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const tensors = `input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] `

func builtin(name string) string {
	return fmt.Sprintf(`backend: "python" max_batch_size: 8 %s parameters { key: "conch_builtin" value { string_value: %q } } `, tensors, name)
}

func slow(ms int) string {
	return builtin("slow") + fmt.Sprintf(`parameters { key: "conch_slow_ms" value { string_value: "%d" } }`, ms)
}

// write writes a model with the given version directories.
func write(t testing.TB, repo, name, config string, versions ...string) {
	t.Helper()
	dir := filepath.Join(repo, name)
	if len(versions) == 0 {
		versions = []string{"1"}
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, v := range versions {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, v), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(config), 0o644))
}

// start serves a repository and returns a client.
func start(t testing.TB, o minitriton.Options) (*minitriton.Server, *triton.Client) {
	t.Helper()
	s, err := minitriton.New(o)
	require.NoError(t, err)
	l, err := minitriton.Loopback()
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context(), l))
	c, err := triton.Dial(s.Endpoint().GRPC)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	})
	return s, c
}

func infer(ctx context.Context, c *triton.Client, model string) (*pb.ModelInferResponse, error) {
	return c.Stub.ModelInfer(ctx, &pb.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{make([]byte, 4)},
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 1}}}})
}

// TestFailedLoads compares codes and texts with the real server's.
func TestFailedLoads(t *testing.T) {
	repo := t.TempDir()
	_, c := start(t, minitriton.Options{Repository: repo})
	identity := builtin("identity")
	notPolled := "failed to load 'm', failed to poll from model repository"
	unavailable := func(reason string) string {
		return "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: " + reason + ";\n"
	}
	for _, f := range []struct {
		name, config string
		code         codes.Code
		message      string
	}{
		{"syntax", `backend: "python" {`, codes.Internal, notPolled},
		{"unknown field", "nosuch: 3 " + identity, codes.Internal, notPolled},
		{"name of another", `name: "other" ` + identity, codes.Internal, notPolled},
		{"negative batch", strings.Replace(identity, "max_batch_size: 8", "max_batch_size: -2", 1), codes.Internal, notPolled},
		{"dimension of zero", strings.Replace(identity, "[ -1 ]", "[ 0 ]", 1), codes.Internal, notPolled},
		{"preferred size too large", identity + "dynamic_batching { preferred_batch_size: [ 9 ] }", codes.Internal, notPolled},
		{"no backend", strings.Replace(identity, "conch_builtin", "x", 1), codes.InvalidArgument, unavailable("unable to find backend library for backend 'python', try specifying runtime on the model configuration.")},
		{"GPU instance", identity + "instance_group [ { kind: KIND_GPU } ]", codes.InvalidArgument, unavailable("instance group m_0 of model m has kind KIND_GPU but no GPUs are available")},
		{"another backend", strings.Replace(identity, `"python"`, `"nope"`, 1), codes.InvalidArgument, unavailable("unable to find backend library for backend 'nope', try specifying runtime on the model configuration.")},
		{"levels without a default", identity + "dynamic_batching { priority_levels: 2 }", codes.Internal, notPolled},
		{"a default beyond the levels", identity + "dynamic_batching { priority_levels: 2 default_priority_level: 3 }", codes.Internal, notPolled},
		{"a policy beyond the levels", identity + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 5 value { } } }", codes.Internal, notPolled},
		{"order and levels", identity + "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }", codes.Internal, notPolled},
		{"unknown built-in", builtin("nosuch"), codes.InvalidArgument, unavailable(`conch_builtin "nosuch" is none of identity, add_sub, string, decoupled, sequence, slow, delay, error, version, rank, controls, crash`)},
	} {
		write(t, repo, "m", f.config)
		err := c.Load(t.Context(), "m")
		s := status.Convert(err)
		require.Equal(t, f.code.String()+": "+f.message, s.Code().String()+": "+s.Message(), f.name)
	}
	index, err := c.Index(t.Context(), false)
	require.NoError(t, err)
	require.Len(t, index, 1)
	require.Equal(t, triton.StateUnavailable, index[0].State)
	require.Contains(t, index[0].Reason, `Invalid argument: conch_builtin "nosuch"`)

	require.NoError(t, os.RemoveAll(filepath.Join(repo, "m", "1")))
	write(t, repo, "m", identity, "notanumber")
	err = c.Load(t.Context(), "m")
	require.Equal(t, "load failed for model 'm': at least one version must be available under the version policy of model 'm'\n", status.Convert(err).Message())
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

func TestVersions(t *testing.T) {
	repo := t.TempDir()
	_, c := start(t, minitriton.Options{Repository: repo})
	serving := func() []string {
		m, err := c.ModelMetadata(t.Context(), "m", "")
		require.NoError(t, err)
		return m.Versions
	}
	write(t, repo, "m", builtin("identity"), "1", "3", "2")
	require.NoError(t, c.Load(t.Context(), "m"))
	require.Equal(t, []string{"3"}, serving(), "the latest by default")
	write(t, repo, "m", builtin("identity")+"version_policy { all {} }")
	require.NoError(t, c.Load(t.Context(), "m"))
	require.Equal(t, []string{"1", "2", "3"}, serving())
	r, err := infer(t.Context(), c, "m")
	require.NoError(t, err)
	require.Equal(t, "3", r.ModelVersion, "the highest unless asked")
	write(t, repo, "m", builtin("identity")+"version_policy { specific { versions: [ 2 ] } }")
	require.NoError(t, c.Load(t.Context(), "m"))
	require.Equal(t, []string{"2"}, serving())
	require.Eventually(t, func() bool {
		index, err := c.Index(t.Context(), false)
		return err == nil && len(index) == 3 && index[0].State == triton.StateUnavailable && index[0].Reason == "unloaded"
	}, 30*time.Second, 5*time.Millisecond)
}

// TestReloadUnderLoad changes a model's files while requests run: none fails, and a reload that fails changes nothing.
func TestReloadUnderLoad(t *testing.T) {
	repo := t.TempDir()
	write(t, repo, "m", slow(1))
	_, c := start(t, minitriton.Options{Repository: repo, Load: []string{"m"}})
	stop, failed := make(chan struct{}), make(chan error, 8)
	var served atomic.Int64
	for range cap(failed) {
		go func() {
			for {
				select {
				case <-stop:
					failed <- nil
					return
				default:
				}
				if _, err := infer(t.Context(), c, "m"); err != nil {
					failed <- err
					return
				}
				served.Add(1)
			}
		}()
	}
	for i := range 20 {
		write(t, repo, "m", slow(1)+fmt.Sprintf(`parameters { key: "i" value { string_value: "%d" } }`, i))
		require.NoError(t, c.Load(t.Context(), "m"))
		write(t, repo, "m", "broken {")
		require.Error(t, c.Load(t.Context(), "m"))
	}
	close(stop)
	for range cap(failed) {
		require.NoError(t, <-failed)
	}
	require.Positive(t, served.Load())
}

// metric reads one line of the metrics.
func metric(t *testing.T, s *minitriton.Server, line string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Endpoint().Metrics+"/metrics", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, line+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return "none"
}

// TestReloadAndStatistics: a reload zeroes the statistics and keeps the metrics; where only instance_group changed both go on.
func TestReloadAndStatistics(t *testing.T) {
	repo := t.TempDir()
	write(t, repo, "m", builtin("identity"))
	s, c := start(t, minitriton.Options{Repository: repo, Load: []string{"m"}})
	defer http.DefaultClient.CloseIdleConnections()
	count := func() uint64 {
		stats, err := c.Statistics(t.Context(), "m", "")
		require.NoError(t, err)
		return stats[0].InferenceCount
	}
	const success = `nv_inference_request_success{model="m",version="1"}`
	send := func() {
		_, err := infer(t.Context(), c, "m")
		require.NoError(t, err)
	}
	send()
	require.Equal(t, uint64(1), count())
	write(t, repo, "m", builtin("identity")+"instance_group [ { count: 3 } ]")
	require.NoError(t, c.Load(t.Context(), "m"))
	send()
	require.Equal(t, uint64(2), count(), "instance_group keeps the statistics")
	require.Eventually(t, func() bool { return metric(t, s, success) == "2" }, 30*time.Second, time.Millisecond)
	write(t, repo, "m", builtin("identity")+`parameters { key: "x" value { string_value: "y" } }`)
	require.NoError(t, c.Load(t.Context(), "m"))
	send()
	require.Equal(t, uint64(1), count(), "any other change zeroes them")
	require.Eventually(t, func() bool { return metric(t, s, success) == "3" }, 30*time.Second, time.Millisecond)
	require.Equal(t, "0", metric(t, s, `nv_inference_request_failure{model="m",reason="BACKEND",version="1"}`))
	require.NoError(t, c.Unload(t.Context(), "m"))
	require.Eventually(t, func() bool { return metric(t, s, success) == "none" }, 30*time.Second, time.Millisecond)
}

func TestControlNone(t *testing.T) {
	repo := t.TempDir()
	write(t, repo, "a", builtin("identity"))
	write(t, repo, "b", builtin("nosuch"))
	_, c := start(t, minitriton.Options{Repository: repo, Control: minitriton.ControlNone})
	_, err := infer(t.Context(), c, "a")
	require.NoError(t, err)
	ready, err := c.ModelReady(t.Context(), "b", "")
	require.NoError(t, err)
	require.False(t, ready, "a model that does not load does not keep the others")
	require.Equal(t, codes.Unavailable, status.Code(c.Load(t.Context(), "a")))
	require.Equal(t, codes.Unavailable, status.Code(c.Unload(t.Context(), "a")))
}

// heldClock stops in the first execution until it is let go. It sleeps in naps, so that executions notice at once what happens to the server.
type heldClock struct {
	clock.Clock
	executing, letGo chan struct{}
	once             sync.Once
}

func newHeldClock() *heldClock {
	return &heldClock{Clock: clock.System(), executing: make(chan struct{}), letGo: make(chan struct{})}
}

func (c *heldClock) Sleep(d time.Duration) {
	c.once.Do(func() {
		close(c.executing)
		<-c.letGo
	})
	c.Clock.Sleep(min(d, 20*time.Microsecond))
}

func TestShutdownAnswersWhatItAccepted(t *testing.T) {
	repo := t.TempDir()
	write(t, repo, "m", slow(100))
	clock := newHeldClock()
	s, c := start(t, minitriton.Options{Repository: repo, Load: []string{"m"}, Clock: clock})
	answers := make(chan error, 3)
	for range cap(answers) {
		go func() {
			_, err := infer(t.Context(), c, "m")
			answers <- err
		}()
	}
	<-clock.executing
	require.Eventually(t, func() bool { return metric(t, s, `nv_inference_pending_request_count{model="m",version="1"}`) == "2" }, 30*time.Second, time.Millisecond)
	http.DefaultClient.CloseIdleConnections()
	close(clock.letGo)
	require.NoError(t, s.Shutdown(t.Context()))
	for range cap(answers) {
		require.NoError(t, <-answers)
	}
	select {
	case <-s.Done():
	default:
		t.Fatal("Done is open after Shutdown")
	}
	_, err := infer(t.Context(), c, "m")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Error(t, s.Start(t.Context(), minitriton.Listeners{}), "a server is started once")
}

// executing starts a server that executes a request for an hour.
func executing(t *testing.T) (s *minitriton.Server, answer <-chan error) {
	t.Helper()
	repo := t.TempDir()
	write(t, repo, "m", slow(3_600_000))
	clock := newHeldClock()
	s, c := start(t, minitriton.Options{Repository: repo, Load: []string{"m"}, Clock: clock})
	answered := make(chan error, 1)
	go func() {
		_, err := infer(t.Context(), c, "m")
		answered <- err
	}()
	<-clock.executing
	close(clock.letGo)
	return s, answered
}

func TestShutdownGivesUpInTime(t *testing.T) {
	s, answer := executing(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded)
	<-answer
}

// TestCloseBreaksConnections is a SIGKILL: callers see UNAVAILABLE, and another server can take the port at once.
func TestCloseBreaksConnections(t *testing.T) {
	s, answer := executing(t)
	require.NoError(t, s.Close())
	require.Equal(t, codes.Unavailable, status.Code(<-answer))
	l, err := minitriton.Listen(s.Endpoint().GRPC, s.Endpoint().HTTP, s.Endpoint().Metrics)
	require.NoError(t, err)
	l.Close()
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]minitriton.Options{
		"no repository": {},
		"a file":        {Repository: "server_test.go"},
		"share":         {Repository: ".", Partition: minitriton.Partition{Share: 101}},
		"stretch":       {Repository: ".", Stretch: -1},
	} {
		_, err := minitriton.New(o)
		require.Error(t, err, name)
	}
	_, err := minitriton.Listen("256.0.0.1:1", "", "")
	require.ErrorContains(t, err, `listen for gRPC on "256.0.0.1:1"`)
}

// BenchmarkInfer is the most that clients on the same machine get through one server: 16 floats per request, 32 callers.
func BenchmarkInfer(b *testing.B) {
	repo := b.TempDir()
	write(b, repo, "m", builtin("identity")+"dynamic_batching {}")
	_, c := start(b, minitriton.Options{Repository: repo, Load: []string{"m"}})
	r := &pb.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, 64)},
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 16}}}}
	b.SetParallelism(16)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := c.Stub.ModelInfer(context.Background(), r); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
