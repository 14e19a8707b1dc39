// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/observe"
)

// machine is what the tests need, found once.
type machine struct {
	gpu    *policy.GPU
	daemon mps.Daemon
}

// missing says what this machine lacks; empty where it has all.
func missing(ctx context.Context) (m machine, lacks string) {
	gpus, remark, err := observe.DetectGPUs()
	switch {
	case err != nil:
		return m, err.Error()
	case len(gpus) == 0:
		return m, "an NVIDIA GPU and its driver: " + remark
	}
	m.gpu = gpus[0]
	for _, program := range []string{"nvidia-smi", mps.ControlProgram, "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			return m, program + " on the path"
		}
	}
	if m.daemon = mps.Detect(ctx, os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), ""); !m.daemon.Running {
		return m, "a running MPS control daemon (nvidia-cuda-mps-control -d): " + m.daemon.Reason
	}
	return m, ""
}

// here is the machine. `make e2e-gpu` is for a machine with a GPU, so that what is missing is a failure there; under `go test ./...` it is not.
func here(t *testing.T) machine {
	t.Helper()
	m, lacks := missing(t.Context())
	if lacks != "" && os.Getenv("CONCH_GPU") == "" {
		t.Skipf("needs %s; `make e2e-gpu` runs this on a machine with a GPU", lacks)
	}
	require.Empty(t, lacks, "make e2e-gpu needs %s", lacks)
	return m
}

// client starts testdata/client.py as the server of a partition would be started.
func (m machine) client(t *testing.T, p *policy.Partition, arguments ...string) *exec.Cmd {
	t.Helper()
	share := mps.Of(p, m.gpu, m.daemon)
	require.True(t, share.Enforced, share.Reason)
	c := exec.CommandContext(t.Context(), "python3", append([]string{"testdata/client.py"}, arguments...)...)
	c.Env = append(os.Environ(), share.Environment...)
	c.WaitDelay = time.Minute
	return c
}

func (m machine) run(t *testing.T, p *policy.Partition, arguments ...string) (output string, err error) {
	t.Helper()
	out, err := m.client(t, p, arguments...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func whole() *policy.Partition { return &policy.Partition{ThreadPercentage: 100} }

func TestNVMLSeesWhatTheDriversToolSees(t *testing.T) {
	m := here(t)
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", "--id=0", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits").Output()
	require.NoError(t, err)
	uuid, mebibytes, _ := strings.Cut(strings.TrimSpace(string(out)), ", ")
	require.Equal(t, uuid, m.gpu.GetUuid())
	total, err := strconv.ParseUint(mebibytes, 10, 64)
	require.NoError(t, err)
	require.Equal(t, total, m.gpu.GetMemoryBytes()>>20)
}

func TestAShareIsEnforced(t *testing.T) {
	m := here(t)
	multiprocessors := func(p *policy.Partition) int {
		out, err := m.run(t, p, "sms")
		require.NoError(t, err, out)
		n, err := strconv.Atoi(out)
		require.NoError(t, err)
		return n
	}
	all := multiprocessors(whole())
	require.Equal(t, int(m.gpu.GetSmCount()), all, "NVML's arithmetic")
	quarter := multiprocessors(&policy.Partition{ThreadPercentage: 25})
	require.InDelta(t, float64(all)/4, float64(quarter), 2, "MPS rounds to pairs")
}

func TestAMemoryLimitIsEnforced(t *testing.T) {
	m := here(t)
	const wanted = 2 << 30
	out, err := m.run(t, whole(), "alloc", strconv.Itoa(wanted))
	require.NoError(t, err, out)
	out, err = m.run(t, &policy.Partition{ThreadPercentage: 100, MemoryLimitBytes: wanted / 2}, "alloc", strconv.Itoa(wanted))
	require.Error(t, err)
	require.Equal(t, "CUDA error 2 in cuMemAlloc_v2", out, "out of memory")
}

// A client makes the GPU fault: the daemon says so, a neighbour computes no more, and when both have ended others do.
func TestAFaultTakesNeighboursAlong(t *testing.T) {
	m := here(t)
	neighbour := m.client(t, whole(), "hold")
	in, err := neighbour.StdinPipe()
	require.NoError(t, err)
	out, err := neighbour.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, neighbour.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	require.Equal(t, "held", lines.Text())
	faulted, err := m.daemon.Faulted(t.Context())
	require.NoError(t, err)
	require.False(t, faulted)

	output, err := m.run(t, whole(), "fault")
	require.Error(t, err)
	require.Contains(t, output, "CUDA error")
	require.Eventually(t, func() bool {
		faulted, err := m.daemon.Faulted(t.Context())
		return err == nil && faulted
	}, time.Minute, 100*time.Millisecond)

	_, err = fmt.Fprintln(in)
	require.NoError(t, err)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "CUDA error")
	require.Error(t, neighbour.Wait())
	require.Eventually(t, func() bool {
		_, err := m.run(t, whole(), "sms")
		return err == nil
	}, time.Minute, 100*time.Millisecond, "once all clients have ended, others are let in")
}
