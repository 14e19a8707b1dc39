// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package mps_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/mps"
)

func TestShares(t *testing.T) {
	running := mps.Daemon{PipeDirectory: "/run/mps", Running: true}
	for name, c := range map[string]struct {
		p    *policy.Partition
		g    *policy.GPU
		d    mps.Daemon
		want mps.Share
	}{
		"share and memory": {
			&policy.Partition{ThreadPercentage: 40, MemoryLimitBytes: 8<<30 + 12345}, &policy.GPU{Uuid: "GPU-1", Index: 3}, running,
			mps.Share{Enforced: true, Environment: []string{
				"CUDA_VISIBLE_DEVICES=GPU-1", "CUDA_MPS_PIPE_DIRECTORY=/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M",
			}},
		},
		"no memory limit, no unique id": {
			&policy.Partition{ThreadPercentage: 100}, &policy.GPU{Index: 3}, running,
			mps.Share{Enforced: true, Environment: []string{"CUDA_VISIBLE_DEVICES=3", "CUDA_MPS_PIPE_DIRECTORY=/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"}},
		},
		"a limit below a mebibyte is not no limit": {
			&policy.Partition{ThreadPercentage: 1, MemoryLimitBytes: 1}, &policy.GPU{Uuid: "GPU-1"}, running,
			mps.Share{Enforced: true, Environment: []string{
				"CUDA_VISIBLE_DEVICES=GPU-1", "CUDA_MPS_PIPE_DIRECTORY=/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1M",
			}},
		},
		"no daemon": {
			&policy.Partition{ThreadPercentage: 40, MemoryLimitBytes: 8 << 30}, &policy.GPU{Uuid: "GPU-1"}, mps.Daemon{PipeDirectory: "/run/mps"},
			mps.Share{Environment: []string{"CUDA_VISIBLE_DEVICES=GPU-1"}, Reason: "no MPS control daemon answers in /run/mps"},
		},
		"emulated": {
			&policy.Partition{ThreadPercentage: 40}, &policy.GPU{Id: "gpu0", Emulated: true}, running,
			mps.Share{Environment: []string{"CUDA_VISIBLE_DEVICES="}, Reason: "the GPU is emulated"},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, mps.Of(c.p, c.g, c.d)) })
	}
}

func TestDetect(t *testing.T) {
	dir := t.TempDir()
	require.Equal(t, mps.Daemon{PipeDirectory: dir}, mps.Detect(dir, nil))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "control"), nil, 0o600))
	require.False(t, mps.Detect(dir, nil).Running, "a plain file is no daemon")
	require.NoError(t, os.Remove(filepath.Join(dir, "control")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "control"), 0o600))
	require.Equal(t, mps.Daemon{PipeDirectory: dir, Running: true}, mps.Detect(dir, nil))
	require.Equal(t, mps.DefaultPipeDirectory, mps.Detect("", os.Stat).PipeDirectory)
}
