// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
)

// large is a model of 600 KB a row that takes 2 ms an execution.
func large(t *testing.T) (repository string, tensor loadgen.Tensor) {
	t.Helper()
	repository = t.TempDir()
	const elements = 150 * 1024
	require.NoError(t, zoo.Write(repository, zoo.Model{
		Name: "large", Profile: zoo.Profile{Model: "large", GPUType: zoo.A100, Beta: 2 * time.Millisecond, SLO: time.Second},
		MaxBatchSize: 8, Dims: []int64{elements}, ModelPy: pymodels.Emulate,
	}))
	return repository, loadgen.Emulated(elements)
}

// crowd calls from a number of goroutines at once and checks every answer.
func crowd(t *testing.T, c loadgen.Caller, callers, each int) {
	t.Helper()
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for k := range each {
				errs[i] = errors.Join(errs[i], c.Call(t.Context(), 0, uint64(i*each+k)))
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

// Large tensors go to a real server through shared memory, of which callers see nothing; when the server loses the regions, because a client
// has all of them unregistered or because it dies, they go through the socket, and then through shared memory again.
func TestLargeTensorsGoThroughSharedMemory(t *testing.T) {
	t.Parallel()
	repository, tensor := large(t)
	c := serve(t, rig.ConchOptions{Repository: repository, GPUs: 1})
	grpc, err := loadgen.NewGRPC(c.Endpoints(), []loadgen.Model{{Name: "large"}}, tensor)
	require.NoError(t, err)
	defer grpc.Close()
	web, err := loadgen.NewHTTP(c.HTTP, "large", tensor, 8)
	require.NoError(t, err)
	defer web.Close()
	lent := func() float64 { return scrape(t, c).sum("conch_shared_memory_bytes_total") }
	untilLent := func() {
		require.Eventually(t, func() bool {
			before := lent()
			crowd(t, grpc, 2, 4)
			return lent() > before
		}, 30*time.Second, 10*time.Millisecond, "nothing goes through shared memory")
	}
	untilLent()
	crowd(t, grpc, 8, 8)
	crowd(t, web, 8, 8)

	status, err := triton(t, c).SystemSharedMemoryStatus(t.Context(), &tritonpb.SystemSharedMemoryStatusRequest{})
	require.NoError(t, err)
	require.Empty(t, status.GetRegions(), "clients see only their own")
	_, regions, err := get(t, "http://"+c.HTTP+"/v2/systemsharedmemory/status")
	require.NoError(t, err)
	require.Equal(t, "[]", regions)
	// A name is there only until the server has mapped it; other tests have theirs.
	require.Eventually(t, func() bool {
		left, err := filepath.Glob("/dev/shm/conch-lent-*")
		return err == nil && len(left) == 0
	}, 30*time.Second, time.Millisecond, "a crash must leave nothing behind")

	_, err = triton(t, c).SystemSharedMemoryUnregister(t.Context(), &tritonpb.SystemSharedMemoryUnregisterRequest{})
	require.NoError(t, err)
	crowd(t, grpc, 4, 4)
	untilLent()

	gpus, err := admin(t, c).GPUs(t.Context())
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(serverOf(t, c, gpus[0].Partitions[0].ID), syscall.SIGKILL))
	crowd(t, grpc, 4, 4)
	untilLent()
}

// Large tensors go to real servers that others run through shared memory, too, where conch.yaml says so, and what comes back is each caller's own. When a
// client has all regions of a server unregistered, they go through the socket, and then through shared memory again. No region is left with the servers.
func TestLargeTensorsGoToAttachedServersThroughSharedMemory(t *testing.T) {
	t.Parallel()
	model, tensor := large(t)
	own := repository(t, "emulated") // what the servers have already is conch's then
	require.NoError(t, os.CopyFS(own, os.DirFS(model)))
	w := newTeam(t)
	c := w.attach("control", func(settings map[string]any) {
		settings["repository"] = own
		driver := settings["driver"].(map[string]any)
		driver["sharedMemory"] = true
		endpoints := driver["endpoints"].([]map[string]any)
		for i := range endpoints {
			endpoints[i]["repository"] = w.dirs[i]
		}
	})
	a := admin(t, c)
	require.Eventually(t, func() bool {
		m, err := a.Model(t.Context(), "large")
		return err == nil && m.State == "ready" && len(m.Partitions) > 0
	}, 60*time.Second, 50*time.Millisecond)
	grpc, err := loadgen.NewGRPC(c.Endpoints(), []loadgen.Model{{Name: "large"}}, tensor)
	require.NoError(t, err)
	defer grpc.Close()
	lent := func() float64 { return scrape(t, c).sum("conch_shared_memory_bytes_total") }
	untilLent := func() {
		require.Eventually(t, func() bool {
			before := lent()
			crowd(t, grpc, 2, 4)
			return lent() > before
		}, 30*time.Second, 10*time.Millisecond, "nothing goes through shared memory")
	}
	regions := func() (n int) {
		for _, s := range w.clients {
			status, err := s.Stub.SystemSharedMemoryStatus(t.Context(), &tritonpb.SystemSharedMemoryStatusRequest{})
			require.NoError(t, err)
			n += len(status.GetRegions())
		}
		return n
	}
	untilLent()
	require.Positive(t, regions())
	crowd(t, grpc, 8, 8)
	for _, s := range w.clients {
		require.EventuallyWithT(t, func(collect *assert.CollectT) { // a server holds on to a region for a moment after its answer
			_, err := s.Stub.SystemSharedMemoryUnregister(t.Context(), &tritonpb.SystemSharedMemoryUnregisterRequest{})
			assert.NoError(collect, err)
		}, 30*time.Second, 10*time.Millisecond)
	}
	crowd(t, grpc, 4, 4)
	untilLent()
	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGTERM))
	<-c.Exited()
	require.NoError(t, c.ExitError())
	require.Zero(t, regions())
}
