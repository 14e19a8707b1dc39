// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
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
	self, err := os.Executable()
	require.NoError(t, err)
	w.o = ProcessOptions{
		Server: server, Shim: []string{self, "shim"}, Environment: env, Dir: t.TempDir(), StartTimeout: time.Minute, StopTimeout: time.Minute,
	}
	if change != nil {
		change(&w.o)
	}
	w.driver, err = NewProcesses(w.o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, w.driver.Close())
		left, err := os.ReadDir(w.driver.run)
		require.NoError(t, err)
		require.Empty(t, left, "shims left behind")
		regions, err := filepath.Glob(filepath.Join("/dev/shm", w.driver.owner+"*"))
		require.NoError(t, err)
		require.Empty(t, regions, "shared memory left behind")
		require.NoError(t, os.RemoveAll(w.driver.run))
	})
	return w
}

func (w *world) spec() Spec {
	return Spec{
		Partition: &policy.Partition{Id: "gpu0/a", Gpus: []string{"gpu0"}, ThreadPercentage: 40}, GPU: &policy.GPU{Id: "gpu0", Emulated: true},
		Hash: "h", RepositoryDir: w.repo,
	}
}

func (w *world) start() *processServer {
	w.Helper()
	p, err := w.driver.Start(w.Context(), w.spec())
	require.NoError(w, err)
	return p.(*processServer)
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

// await waits for the end of a server.
func await(t *testing.T, s Server) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(time.Minute):
		t.Fatal("the server does not end")
	}
}

func TestAServerLoadsServesAndStops(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		s := w.start()
		require.True(t, strings.HasPrefix(s.Endpoint().GRPC, "unix:") && strings.HasPrefix(s.Endpoint().HTTP, "unix:"))
		require.NoError(t, s.Live(t.Context()))
		require.NoError(t, s.Load(t.Context(), "m"))
		models, err := s.Models(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"m"}, models)
		// A request under way is answered before the server ends.
		answered := make(chan error, 1)
		go func() { answered <- infer(context.WithoutCancel(t.Context()), s.Endpoint(), "m") }()
		require.Eventually(t, func() bool { _, err := os.Stat(w.noted("m")); return err == nil }, time.Minute, time.Millisecond)
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, <-answered)
		await(t, s)
		log, err := os.ReadFile(s.Log())
		require.NoError(t, err)
		if w.real {
			require.Contains(t, string(log), "Started GRPCInferenceService")
		}
	})
}

// Conch lets go of its servers; another one finds them as they are, and nothing
// is loaded again.
func TestAnotherConchFindsTheServers(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		first := w.start()
		require.NoError(t, first.Load(t.Context(), "m"))
		require.NoError(t, first.Leave())
		await(t, first)

		next, err := NewProcesses(w.o)
		require.NoError(t, err)
		found, err := next.Find(t.Context())
		require.NoError(t, err)
		require.Len(t, found, 1)
		s := found[0].(*processServer)
		require.Equal(t, first.ServerPID(), s.ServerPID())
		require.Equal(t, first.Endpoint(), s.Endpoint())
		require.Equal(t, "h", s.Spec().Hash)
		require.Equal(t, "gpu0/a", s.Spec().Partition.GetId())
		require.Equal(t, w.repo, s.Spec().RepositoryDir)
		require.EqualValues(t, 40, s.Spec().Partition.GetThreadPercentage())
		require.NoError(t, infer(t.Context(), s.Endpoint(), "m"))
		require.NoError(t, s.Stop(t.Context()))
	})
}

// However many servers come and go while conch runs, few of their logs are kept; those of servers that are there are, however old.
func TestLogsOfServersThatAreGone(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1"}, nil)
	first := w.start()
	long := time.Unix(1e9, 0)
	require.NoError(t, os.Chtimes(first.Log(), long, long))
	for i := range 3 * logsKept {
		path := filepath.Join(w.o.Dir, "logs", fmt.Sprintf("gone-%02d.log", i))
		require.NoError(t, os.WriteFile(path, []byte("it ended"), 0o600))
		at := long.Add(time.Duration(i) * time.Hour)
		require.NoError(t, os.Chtimes(path, at, at))
	}
	// Somebody may want to know why it ended.
	other := filepath.Join(w.o.Dir, "logs", "other-s1.log")
	require.NoError(t, os.WriteFile(other, []byte("it ended"), 0o600))
	require.NoError(t, os.Chtimes(other, long, long))
	second := w.start()
	require.FileExists(t, other)
	gone, err := filepath.Glob(filepath.Join(w.o.Dir, "logs", "gone-*"))
	require.NoError(t, err)
	require.Len(t, gone, logsKept)
	require.Equal(t, "gone-40.log", filepath.Base(gone[0]), "the last ones")
	for _, s := range []*processServer{first, second} {
		require.FileExists(t, s.Log())
		require.NoError(t, s.Stop(t.Context()))
	}
}

// A server that is killed says so, and leaves neither stubs nor shared memory.
func TestAKilledServer(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		if env["FAKE_TRITON"] != "" {
			env["FAKE_STUB"] = "1"
		}
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		s := w.start()
		require.NoError(t, s.Load(t.Context(), "m"))
		require.NoError(t, syscall.Kill(s.ServerPID(), syscall.SIGKILL))
		await(t, s)
		require.Contains(t, s.Death(), "signal: killed")
		require.Error(t, s.Load(t.Context(), "m"))
	})
}

func TestAModelThatIsRefused(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "raise Exception('raised')")
		s := w.start()
		var refused *LoadError
		require.ErrorAs(t, s.Load(t.Context(), "m"), &refused)
		require.ErrorContains(t, refused, "raised")
		require.NotRegexp(t, `[;\s]$`, refused.Error(), "it goes on in the middle of other sentences")
		require.False(t, refused.Hung || refused.Died)
		require.ErrorAs(t, s.Load(t.Context(), "absent"), &refused)
		require.ErrorContains(t, refused, "it logged", "the reason is in the log alone")
		require.NoError(t, s.Stop(t.Context()))
	})
}

// Triton never ends the load of a version without its file.
func TestALoadThatHangs(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, nil)
		w.model("m", "pass")
		require.NoError(t, os.Remove(filepath.Join(w.repo, "m", "1", "model.py")))
		s := w.start()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var refused *LoadError
		require.ErrorAs(t, s.Load(ctx, "m"), &refused)
		require.True(t, refused.Hung)
		require.NoError(t, s.Kill(t.Context()))
	})
}

// Triton does not end the load of a model whose process dies before its first message either (it notices one that dies in its initialisation):
// conch notices, if it has seen the process alive.
func TestALoadInWhichTheProcessOfTheModelDies(t *testing.T) {
	server := os.Getenv("CONCH_TRITONSERVER")
	if server == "" {
		t.Skip("CONCH_TRITONSERVER names no tritonserver")
	}
	w := newWorld(t, server, map[string]string{}, func(o *ProcessOptions) { o.ModelGone = 2 * time.Second })
	s := w.start()
	defer func() { require.NoError(t, s.Kill(context.WithoutCancel(t.Context()))) }()
	w.model("dies", `time.sleep(1000)`)
	within, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	go func() {
		for within.Err() == nil {
			for pid := range modelProcesses(s.ServerPID(), w.repo, "dies") {
				_ = syscall.Kill(pid, syscall.SIGSTOP) // it never says its first word
				sleep(within, 4*stubPatience)          // the load's own looks have to see it
				_ = syscall.Kill(pid, syscall.SIGKILL)
				return
			}
		}
	}()
	var failed *LoadError
	require.ErrorAs(t, s.Load(within, "dies"), &failed)
	require.True(t, failed.Hung && failed.Died, "%v", failed)
	require.NoError(t, within.Err())
}

func TestInPython(t *testing.T) {
	for text, want := range map[string]bool{
		`backend: "python" max_batch_size: 8`:               true,
		`backend: "tensorrt"`:                               false,
		`platform: "onnxruntime_onnx" of_a_newer_triton: 3`: false,
		`backend: "python`:                                  false,
	} {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "m"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "m", "config.pbtxt"), []byte(text), 0o644))
		require.Equal(t, want, inPython(dir, "m"), text)
	}
	require.False(t, inPython(t.TempDir(), "m"), "no file")
}

func TestALoadInWhichTheServerDies(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1"}, nil)
	w.model("m", "os._exit(7)")
	s := w.start()
	var died *LoadError
	require.ErrorAs(t, s.Load(t.Context(), "m"), &died)
	require.True(t, died.Died)
	require.ErrorContains(t, died, "exit status 7")
}

func TestAServerThatDoesNotStartSaysWhy(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, func(o *ProcessOptions) { o.Arguments = []string{"--no-such-flag"} })
		_, err := w.driver.Start(t.Context(), w.spec())
		require.ErrorContains(t, err, "exit status 1")
	})
}

// A stop that the server ignores ends in a kill of everything.
func TestAStopThatIsIgnored(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"FAKE_TRITON": "1", "FAKE_IGNORES_TERM": "1", "FAKE_STUB": "1"}, func(o *ProcessOptions) { o.StopTimeout = 50 * time.Millisecond })
	s := w.start()
	require.ErrorContains(t, s.Stop(t.Context()), "did not end within 50ms of SIGTERM")
	await(t, s)
}

func TestTheCommandLineAndTheEnvironment(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	w := newWorld(t, self, map[string]string{"OURS": "1"}, func(o *ProcessOptions) {
		o.Base = []string{"PATH=/bin", "CONCH_GPU=forged", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"}
		o.Arguments = []string{"--log-verbose=1"}
		o.MPS = mps.Daemon{PipeDirectory: "/pipe", Running: true}
	})
	spec := w.spec()
	spec.GPU = &policy.GPU{Id: "gpu0", Index: 3}
	environment := w.driver.environment(spec)
	for _, e := range []string{"PATH=/bin", "CONCH_GPU=gpu0", "CONCH_PARTITION=gpu0/a", "CONCH_SHARE=40", "OURS=1", "CUDA_VISIBLE_DEVICES=3", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40"} {
		require.Contains(t, environment, e)
	}
	require.NotContains(t, environment, "CONCH_GPU=forged")
	const untimed = "CONCH_EMULATION_STRETCH=0"
	require.NotContains(t, environment, untimed)
	spec.Untimed = true
	require.Contains(t, w.driver.environment(spec), untimed)
	arguments := w.driver.arguments(spec, Endpoint{GRPC: "unix:/d/g:1", HTTP: "unix:/d/h", Metrics: "127.0.0.1:9"}, "x-")
	for _, a := range []string{"--model-repository=" + w.repo, "--grpc-address=unix:/d/g", "--grpc-port=1", "--http-address=unix:/d/h", "--metrics-port=9", "--strict-readiness=false"} {
		require.Contains(t, arguments, a)
	}
	require.Equal(t, "--log-verbose=1", arguments[len(arguments)-1])

	// What the process is started with makes its hash; what it inherits does not.
	hash := w.driver.Hash(spec.Partition, spec.GPU)
	w.driver.o.Base = nil
	require.Equal(t, hash, w.driver.Hash(spec.Partition, spec.GPU))
	w.driver.o.Arguments = nil
	require.NotEqual(t, hash, w.driver.Hash(spec.Partition, spec.GPU))
}

// Sockets fit although the state lies deep, and in a directory that is ours
// alone.
func TestTheDirectoryOfSockets(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	w := newWorld(t, self, nil, func(o *ProcessOptions) { o.Dir = deep })
	require.Equal(t, os.TempDir(), filepath.Dir(w.driver.run))
	info, err := os.Stat(w.driver.run)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NoError(t, os.Chmod(w.driver.run, 0o755))
	_, err = NewProcesses(w.o)
	require.ErrorContains(t, err, "only this user may enter")
	require.NoError(t, os.Chmod(w.driver.run, 0o700))
}
