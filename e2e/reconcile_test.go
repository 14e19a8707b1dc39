// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// What dies under conch comes back as it was desired, and nothing else is touched.
func TestWhatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	l, err := parseLayout("gpu0.0:100=small-0+small-1 gpu1.0:100=small-0+small-1")
	require.NoError(t, err)
	models := small(2)
	c := serve(t, rig.ConchOptions{Models: models, GPUs: 2, Settings: layoutSettings(t, l)})
	a := admin(t, c)
	load := ask(t, c.GRPC, 4, models.Names)
	const victim, other = "gpu0.0:100:0", "gpu1.0:100:0"
	for _, fault := range []struct {
		name string
		do   func(t *testing.T, victim running)
		// same: the server is still the same process.
		same bool
		// costs: callers whose batch a dead model process was about to answer get its error: it may have been their input that killed it.
		costs bool
	}{
		{name: "its shim is killed", do: func(t *testing.T, v running) { kill(t, shimOf(t, v.pid)) }},
		{name: "its server ends by somebody's SIGTERM", do: func(t *testing.T, v running) { require.NoError(t, syscall.Kill(v.pid, syscall.SIGTERM)) }},
		{name: "the python process of a model is killed", costs: true, do: func(t *testing.T, v running) {
			kill(t, v.stubs["small-0"])
			burst(t, c, "small-0", func() bool { return look(t, c).servers[victim].pid != v.pid })
		}},
		{name: "a model is unloaded behind conch's back", same: true, do: func(t *testing.T, v running) { unloadBehind(t, a, "gpu0.0", "small-0") }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			before := requireLayout(t, c, a, l)
			began := time.Now()
			fault.do(t, before.servers[victim])
			require.Eventually(t, func() bool {
				s := look(t, c).servers[victim]
				return s.stubs["small-0"] != before.servers[victim].stubs["small-0"]
			}, time.Minute, time.Millisecond, "it is gone")
			after := requireLayout(t, c, a, l)
			t.Logf("as desired after %v", time.Since(began).Round(time.Millisecond))
			require.Equal(t, before.servers[other], after.servers[other])
			require.Equal(t, fault.same, before.servers[victim].pid == after.servers[victim].pid)
			answered := load.answered.Load()
			require.Eventually(t, func() bool { return load.answered.Load() > answered+20 }, time.Minute, time.Millisecond)
			if fault.costs {
				load.forgive(t, codes.Internal, "Stub process")
			}
			load.requireNoneLost(t)
		})
	}
	load.close(t)
}

// forgive takes back the errors of one kind; there must be no other.
func (s *steady) forgive(t *testing.T, code codes.Code, text string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, err := range s.lost {
		require.Equal(t, code, status.Code(err), "%v", err)
		require.ErrorContains(t, err, text)
	}
	s.lost = nil
}

// burst asks a model many times at the same time, so that all its places are used, until a condition holds. Answers may be errors.
func burst(t *testing.T, c *rig.Conch, model string, until func() bool) {
	t.Helper()
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stub := tritonpb.NewGRPCInferenceServiceClient(conn)
	require.Eventually(t, func() bool {
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() { _, _ = stub.ModelInfer(t.Context(), tensor(model, 1)) })
		}
		wg.Wait()
		return until()
	}, time.Minute, time.Millisecond)
}

// unloadBehind asks the server of a partition itself to unload a model.
func unloadBehind(t *testing.T, a *client.Client, partition, model string) {
	t.Helper()
	for _, p := range partitions(t, a) {
		if p.ID != partition {
			continue
		}
		conn, err := grpc.NewClient(p.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		_, err = tritonpb.NewGRPCInferenceServiceClient(conn).RepositoryModelUnload(t.Context(), &tritonpb.RepositoryModelUnloadRequest{ModelName: model})
		require.NoError(t, err)
		return
	}
	require.FailNow(t, "no partition", partition)
}

// `conch stop --leave` ends conch alone: the next one serves at once, by the same processes.
func TestStopAndLeave(t *testing.T) {
	t.Parallel()
	l, err := parseLayout("gpu0.0:100=small-0")
	require.NoError(t, err)
	models := small(1)
	c := serve(t, rig.ConchOptions{Models: models, GPUs: 1, Settings: layoutSettings(t, l)})
	before := requireLayout(t, c, admin(t, c), l)
	out, err := exec.CommandContext(t.Context(), filepath.Join(setting(t, "CONCH_BIN"), "conch"), "stop", "--leave", "--config", c.Config).CombinedOutput()
	require.NoError(t, err, "%s", out)
	<-c.Exited()
	require.NoError(t, c.ExitError())
	require.Equal(t, before, look(t, c), "everything goes on")

	began := time.Now()
	require.NoError(t, c.Launch())
	t.Logf("the first answer came %v after the next conch was started", firstAnswer(t, c, models.Names()).Sub(began).Round(time.Millisecond))
	require.Equal(t, before, requireLayout(t, c, admin(t, c), l))
}

// One model is refused by its server, the load of another never ends, and many serve beside them. A plan without the second one does not wait
// for it; files of the first one are mended, and it serves.
func TestModelsThatDoNotLoad(t *testing.T) {
	t.Parallel()
	good := small(rounds(t, "CONCH_MODELS", 4))
	repository := t.TempDir()
	require.NoError(t, good.Write(repository))
	write := func(model, initialize string) {
		t.Helper()
		config := fmt.Sprintf(`name: %q backend: "python" max_batch_size: 8
			input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] } ] output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
			instance_group [ { count: 1 kind: KIND_CPU } ]`, model)
		code := `import time
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        ` + initialize + `

    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUTPUT", 2 * pb.get_input_tensor_by_name(r, "INPUT").as_numpy() + np.float32(1))]) for r in requests]
`
		require.NoError(t, os.MkdirAll(filepath.Join(repository, model, "1"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(repository, model, "config.pbtxt"), []byte(config), 0o644))
		require.NoError(t, os.WriteFile(filepath.Join(repository, model, "1", "model.py"), []byte(code), 0o644))
	}
	write("refused", `raise ValueError("no weights")`)
	write("endless", `time.sleep(10000)`)
	all := strings.Join(good.Names(), "+")
	l, err := parseLayout("gpu0.0:100=refused+" + all)
	require.NoError(t, err)
	c := serve(t, rig.ConchOptions{Repository: repository, Await: good.Names(), GPUs: 2, Settings: layoutSettings(t, l)})
	a := admin(t, c)
	stub := triton(t, c)
	for _, model := range good.Names() {
		r, err := stub.ModelInfer(t.Context(), tensor(model, 3))
		require.NoError(t, err)
		require.InDelta(t, 7, firstOutput(r), 0)
	}
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		m, err := a.Model(t.Context(), "refused")
		assert.NoError(collect, err)
		assert.Contains(collect, m.StateReason, "no weights")
	}, time.Minute, 20*time.Millisecond)

	endless, err := parseLayout(l.String() + " gpu1.0:100=endless")
	require.NoError(t, err)
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, _ = order(t, a, endless) // it is superseded
	}()
	require.Eventually(t, func() bool { return look(t, c).servers["gpu1.0:100:0"].stubs["endless"] != 0 }, time.Minute, 5*time.Millisecond, "it is being loaded")
	quiet := watchQuiet(t)
	began := time.Now()
	_, err = order(t, a, l)
	took := time.Since(began)
	require.NoError(t, err)
	require.Equal(t, l.sorted().String(), layoutOf(t, mustPlan(t, a)).String())
	<-waiting
	t.Logf("the plan without the load that never ends: %v", took.Round(time.Millisecond))
	if quiet() {
		require.Less(t, took, time.Second)
	}

	write("refused", `pass`)
	_, err = a.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
	require.NoError(t, err)
	_, err = a.Apply(t.Context(), api.ApplyRequest{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(collect *assert.CollectT) { // an order that comes meanwhile has Apply return before its servers are there
		r, err := stub.ModelInfer(t.Context(), tensor("refused", 3))
		if assert.NoError(collect, err) {
			assert.InDelta(collect, 7, firstOutput(r), 0)
		}
	}, time.Minute, 20*time.Millisecond)
	requireLayout(t, c, a, l)
}

func mustPlan(t *testing.T, a *client.Client) api.Plan {
	t.Helper()
	p, err := a.Plan(t.Context())
	require.NoError(t, err)
	return p
}

// A GPU that cannot hold the old server and the new one: the diff says so, the old one goes first, and requests wait for the new one.
func TestAFullGPU(t *testing.T) {
	t.Parallel()
	const memory = 6 << 30
	present := layout{{partition: "gpu0.0", share: 50, memory: memory, models: []string{"small-0"}}}
	next := layout{{partition: "gpu0.0", share: 100, memory: memory, models: []string{"small-0"}}}
	settings := layoutSettings(t, present)
	settings["gpus"] = []map[string]any{{"type": "A100", "count": 1, "emulated": true, "memory": "10GiB"}}
	models := small(1)
	c := serve(t, rig.ConchOptions{Models: models, GPUs: 1, Settings: settings})
	a := admin(t, c)
	load := ask(t, c.GRPC, 4, models.Names)
	old := serverOf(t, c, "gpu0.0")
	_, err := a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"layout": next.String()}})
	require.NoError(t, err)
	out, code := tritonctl(t, c, "plan", "diff")
	require.Zero(t, code, out)
	require.Contains(t, out, "drain and stop the old process, then start this one; requests for small-0 wait meanwhile")
	var both atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			servers := map[int]process{}
			for _, p := range processesOf(t, c) {
				if strings.Contains(p.command, "shm-region-prefix-name=") && strings.Contains(p.command, "--model-repository=") {
					servers[p.pid] = p
				}
			}
			// What a server has just forked has the server's command line until it becomes a model's process.
			maps.DeleteFunc(servers, func(_ int, p process) bool { _, forked := servers[p.parent]; return forked })
			if len(servers) > 1 {
				both.Store(true)
			}
		}
	})
	_, err = a.Apply(t.Context(), api.ApplyRequest{})
	cancel()
	watching.Wait()
	require.NoError(t, err)
	require.Equal(t, next.String(), layoutOf(t, mustPlan(t, a)).String())
	require.NotEqual(t, old, serverOf(t, c, "gpu0.0"))
	require.False(t, both.Load(), "two servers ran at the same time")
	answered := load.answered.Load()
	require.Eventually(t, func() bool { return load.answered.Load() > answered+20 }, time.Minute, time.Millisecond)
	load.close(t)
}

// The disk of the state is full: an order is refused and nothing else changes, also where conch is killed and started again on it. With room
// again orders are obeyed.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if err := syscall.Mount("none", state, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a small file system cannot be mounted here (%v): TestWhatCannotBeWrittenDownIsNotDone of sidecar/apply stands for it", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(state, syscall.MNT_DETACH)) })
	present, err := parseLayout("gpu0.0:100=small-0")
	require.NoError(t, err)
	next, err := parseLayout("gpu0.0:50=small-0 gpu0.1:50=small-1")
	require.NoError(t, err)
	models := small(2)
	c := serve(t, rig.ConchOptions{Models: models, State: state, Await: []string{"small-0"}, GPUs: 1, Settings: layoutSettings(t, present)})
	a := admin(t, c)
	before := requireLayout(t, c, a, present)
	load := ask(t, c.GRPC, 2, func() []string { return []string{"small-0"} })

	ballast, err := os.Create(filepath.Join(state, "ballast"))
	require.NoError(t, err)
	for block := make([]byte, 1<<20); err == nil; {
		_, err = ballast.Write(block)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	for err = nil; err == nil; {
		_, err = ballast.Write([]byte("x"))
	}
	require.NoError(t, ballast.Close())

	_, err = order(t, a, next)
	require.ErrorContains(t, err, "no space left on device")
	require.Equal(t, before, look(t, c))
	require.Equal(t, present.String(), layoutOf(t, mustPlan(t, a)).String())
	load.requireNoneLost(t)

	load.life.Add(1)
	kill(t, c.Pid())
	<-c.Exited()
	require.NoError(t, c.Launch())
	firstAnswer(t, c, []string{"small-0"})
	load.life.Add(1)
	require.Equal(t, before, requireLayout(t, c, a, present))

	require.NoError(t, os.Remove(filepath.Join(state, "ballast")))
	_, err = order(t, a, next)
	require.NoError(t, err)
	requireLayout(t, c, a, next)
	load.close(t)
}
