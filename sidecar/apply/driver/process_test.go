// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/mps"
)

// world is a driver with a tritonserver, fake or real.
type world struct {
	*testing.T
	real   bool
	o      ProcessOptions
	driver *Processes
	repo   string

	mu     sync.Mutex
	events []Event
}

// onServers runs a test against the fake, and against the real tritonserver
// that CONCH_TRITONSERVER names.
func onServers(t *testing.T, test func(t *testing.T, server string, env map[string]string)) {
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		self, err := os.Executable()
		require.NoError(t, err)
		test(t, self, map[string]string{"FAKE_TRITON": "1"})
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		server := os.Getenv("CONCH_TRITONSERVER")
		if server == "" {
			t.Skip("CONCH_TRITONSERVER names no tritonserver")
		}
		test(t, server, map[string]string{})
	})
}

func newWorld(t *testing.T, server string, env map[string]string, change func(*ProcessOptions)) *world {
	w := &world{T: t, real: env["FAKE_TRITON"] == "", repo: t.TempDir()}
	w.o = ProcessOptions{
		Server: server, Environment: env, Dir: t.TempDir(), StartTimeout: time.Minute, LoadTimeout: time.Minute, StopTimeout: time.Minute,
		Backoff: Backoff{Min: 10 * time.Millisecond, Max: 80 * time.Millisecond, Stable: time.Hour},
	}
	if change != nil {
		change(&w.o)
	}
	d, err := NewProcesses(w.o)
	require.NoError(t, err)
	w.driver = d
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		left, err := filepath.Glob(filepath.Join(sharedMemoryDir, d.owner+"*"))
		require.NoError(t, err)
		require.Empty(t, left, "shared memory left behind")
		killed, err := killOwned(d.owner)
		require.NoError(t, err)
		require.Zero(t, killed, "processes left behind")
	})
	return w
}

func (w *world) spec() Spec {
	return Spec{
		Partition: &policy.Partition{Id: "gpu0/a", Gpus: []string{"gpu0"}, ThreadPercentage: 40}, GPU: &policy.GPU{Id: "gpu0", Emulated: true},
		RepositoryDir: w.repo, Notify: func(e Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
	}
}

func (w *world) start() *supervised {
	w.Helper()
	p, err := w.driver.Start(w.Context(), w.spec())
	require.NoError(w, err)
	return p.(*supervised)
}

func (w *world) seen() []Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Event(nil), w.events...)
}

func (w *world) await(what string, enough func([]Event) bool) {
	w.Helper()
	require.Eventually(w, func() bool { return enough(w.seen()) }, 2*time.Minute, 5*time.Millisecond, what)
}

// model writes a python model that doubles its input and notes when an execution begins; body is what its initialize does.
func (w *world) model(name, body string) {
	w.Helper()
	dir := filepath.Join(w.repo, name, "1")
	require.NoError(w, os.MkdirAll(dir, 0o755))
	config := `backend: "python"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU }
`
	require.NoError(w, os.WriteFile(filepath.Join(w.repo, name, "config.pbtxt"), []byte(config), 0o644))
	code := `import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        ` + body + `

    def execute(self, requests):
        open("` + w.noted(name) + `", "w").close()
        time.sleep(0.3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy() * 2)]) for r in requests]
`
	require.NoError(w, os.WriteFile(filepath.Join(dir, "model.py"), []byte(code), 0o644))
}

// noted is the file that says that an execution has begun.
func (w *world) noted(model string) string { return filepath.Join(w.repo, model, began) }

func infer(ctx context.Context, e Endpoint, model string) error {
	conn, err := grpc.NewClient("passthrough:///"+e.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = tritonpb.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, &tritonpb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 1}}},
		RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, math.Float32bits(3))},
	})
	return err
}

func (p *supervised) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current.(*processServer).cmd.Process.Pid
}

func TestAServerLoadsServesAndStops(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		p := w.start()
		require.Error(t, infer(t.Context(), p.Endpoint(), "m"), "nothing is loaded yet")
		require.NoError(t, p.Load(t.Context(), "m"))
		require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))

		require.NoError(t, os.Remove(w.noted("m")))
		answered := make(chan error, 1)
		go func() { answered <- infer(context.Background(), p.Endpoint(), "m") }()
		require.Eventually(t, func() bool { _, err := os.Stat(w.noted("m")); return err == nil }, 30*time.Second, time.Millisecond)
		require.NoError(t, p.Stop(t.Context()), "a clean stop")
		require.NoError(t, <-answered, "a request that was accepted is answered")
		require.ErrorIs(t, p.Load(t.Context(), "m"), ErrStopped)
		require.Empty(t, w.seen(), "a stop that was ordered is no news")

		log, err := os.ReadFile(filepath.Join(w.o.Dir, "logs", "gpu0_a.log"))
		require.NoError(t, err)
		if w.real {
			require.Contains(t, string(log), "Started GRPCInferenceService")
		}
	})
}

func TestAKilledServerComesBackWithItsModels(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		w.model("n", "pass")
		p := w.start()
		require.NoError(t, p.Load(t.Context(), "m"))
		require.NoError(t, p.Load(t.Context(), "n"))
		require.NoError(t, p.Unload(t.Context(), "n"))
		before := p.Endpoint()
		require.NoError(t, syscall.Kill(p.pid(), syscall.SIGKILL))
		w.await("down, then up", func(e []Event) bool { return len(e) >= 2 })
		events := w.seen()
		require.False(t, events[0].Up)
		require.Contains(t, events[0].Reason, "killed")
		require.True(t, events[1].Up)
		require.Equal(t, 1, events[1].Restarts)
		require.Empty(t, events[1].Missing)
		require.Equal(t, before, events[1].Endpoint, "the same ports, so that open connections find it again")
		require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))
		require.Error(t, infer(t.Context(), p.Endpoint(), "n"), "what was unloaded stays unloaded")
		regions, err := filepath.Glob(filepath.Join(sharedMemoryDir, w.driver.owner+"-*"))
		require.NoError(t, err)
		for _, region := range regions {
			require.Contains(t, region, w.driver.owner+"-2-", "what the dead server had is gone")
		}
		if w.real {
			require.NotEmpty(t, regions)
		}
		require.NoError(t, p.Stop(t.Context()))
	})
}

func TestAModelThatIsRefusedLeavesTheOthers(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		w.model("bad", `raise ValueError("broken on purpose")`)
		p := w.start()
		require.NoError(t, p.Load(t.Context(), "m"))
		var refused *LoadError
		require.ErrorAs(t, p.Load(t.Context(), "bad"), &refused)
		require.False(t, refused.Hung)
		require.Equal(t, "bad", refused.Model)

		err := p.Load(t.Context(), "absent")
		require.ErrorAs(t, err, &refused)
		require.Contains(t, err.Error(), "absent")
		require.Contains(t, err.Error(), "it logged: ", "the reason is only in the log, and belongs into the error")
		require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))
		require.NoError(t, p.Stop(t.Context()))
	})
}

func TestALoadThatHangsEndsAndIsCuredByARestart(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		w.model("hang", "pass")
		file := filepath.Join(w.repo, "hang", "1", "model.py")
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.Remove(file))
		p := w.start()
		require.NoError(t, p.Load(t.Context(), "m"))
		var hung *LoadError
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		require.ErrorAs(t, p.Load(ctx, "hang"), &hung)
		require.True(t, hung.Hung)
		require.NoError(t, infer(t.Context(), p.Endpoint(), "m"), "the others go on")

		require.NoError(t, os.WriteFile(file, code, 0o644))
		require.NoError(t, p.Load(t.Context(), "hang"))
		require.NoError(t, infer(t.Context(), p.Endpoint(), "hang"))
		require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))
		require.NoError(t, p.Stop(t.Context()))
	})
}

func TestAStopWhileALoadHangsKills(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("hang", "pass")
		require.NoError(t, os.Remove(filepath.Join(w.repo, "hang", "1", "model.py")))
		p := w.start()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		require.Error(t, p.Load(ctx, "hang"))
		begin := time.Now()
		require.NoError(t, p.Stop(t.Context()))
		require.Less(t, time.Since(begin), w.o.StopTimeout/2, "no use in asking a server that hangs")
	})
}

func TestAServerThatDoesNotStartSaysWhy(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, func(o *ProcessOptions) { o.Arguments = []string{"--no-such-flag"} })
		_, err := w.driver.Start(t.Context(), w.spec())
		require.ErrorContains(t, err, "exit status 1")
		require.ErrorContains(t, err, "gpu0/a")
	})
}

func TestAServerThatIsNotThereIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	_, err := NewProcesses(ProcessOptions{Dir: t.TempDir()})
	require.ErrorContains(t, err, "driver.tritonserver")
	_, err = NewProcesses(ProcessOptions{Dir: t.TempDir(), Server: "/nowhere/tritonserver"})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = NewProcesses(ProcessOptions{Dir: t.TempDir(), Server: "process_test.go"})
	require.ErrorContains(t, err, "not an executable")
}

func TestTheCommandLineAndTheEnvironment(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	server := filepath.Join(root, "bin", "tritonserver")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "backends"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Dir(server), 0o755))
	require.NoError(t, os.WriteFile(server, []byte("#!/bin/sh\n"), 0o755))
	d, err := NewProcesses(ProcessOptions{
		Server: server, Dir: "/tmp/conch-golden", Base: []string{"PATH=/bin", "CONCH_SHARE=7", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=3"}, Environment: map[string]string{"OMP_NUM_THREADS": "1"},
		Arguments: []string{"--log-verbose=1"}, AllowClientSharedMemory: true, Stretch: 2.5, StopTimeout: 7 * time.Second,
		MPS: mps.Daemon{PipeDirectory: "/tmp/nvidia-mps", Running: true},
	})
	require.NoError(t, err)
	defer d.Close() //nolint:errcheck // nothing was started
	defer os.RemoveAll("/tmp/conch-golden")
	spec := Spec{Partition: &policy.Partition{Id: "p0", ThreadPercentage: 40, MemoryLimitBytes: 8 << 30}, GPU: &policy.GPU{Id: "gpu0", Uuid: "GPU-1234"}, RepositoryDir: "/state/p0/repository"}
	got := strings.Join(d.arguments(spec, ports{1, 2, 3}, "conch-x-1-"), "\n") + "\n\n" + strings.Join(d.environment(spec), "\n") + "\n"
	got = strings.ReplaceAll(strings.ReplaceAll(got, root, "ROOT"), d.owner, "OWNER")
	golden, err := os.ReadFile("testdata/process.golden")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile("testdata/process.golden", []byte(got), 0o644))
		return
	}
	require.NoError(t, err)
	require.Equal(t, string(golden), got)
}

func TestBackoffGrowsToItsLimit(t *testing.T) {
	t.Parallel()
	b := Backoff{Min: time.Second, Max: 10 * time.Second}
	var got []time.Duration
	for i := range 6 {
		got = append(got, b.delay(i)/time.Second)
	}
	require.Equal(t, []time.Duration{1, 2, 4, 8, 10, 10}, got)
	require.Equal(t, 10*time.Second, b.delay(10_000))
	require.Equal(t, Backoff{100 * time.Millisecond, 30 * time.Second, 30 * time.Second}, Backoff{}.withDefaults())
}

func TestALoadErrorTellsRefusalFromHanging(t *testing.T) {
	t.Parallel()
	cause := errors.New("no backend")
	require.ErrorIs(t, &LoadError{Model: "m", Err: cause}, cause)
	require.Contains(t, (&LoadError{Model: "m", Err: cause}).Error(), "refused")
	require.Contains(t, (&LoadError{Model: "m", Hung: true, Err: cause}).Error(), "in time")
}
