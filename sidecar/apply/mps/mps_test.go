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
			&policy.Partition{Gpus: []string{"gpu0"}, ThreadPercentage: 40, MemoryLimitBytes: 8<<30 + 12345}, &policy.GPU{Uuid: "GPU-1", Index: 3}, running,
			mps.Share{Enforced: true, Environment: []string{
				"CUDA_VISIBLE_DEVICES=GPU-1", "CUDA_MPS_PIPE_DIRECTORY=/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M",
			}},
		},
		"no memory limit, no unique id": {
			&policy.Partition{Gpus: []string{"gpu0"}, ThreadPercentage: 100}, &policy.GPU{Index: 3}, running,
			mps.Share{Enforced: true, Environment: []string{"CUDA_VISIBLE_DEVICES=3", "CUDA_MPS_PIPE_DIRECTORY=/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"}},
		},
		"a limit below a mebibyte is not no limit": {
			&policy.Partition{Gpus: []string{"gpu0"}, ThreadPercentage: 1, MemoryLimitBytes: 1}, &policy.GPU{Uuid: "GPU-1"}, running,
			mps.Share{Enforced: true, Environment: []string{
				"CUDA_VISIBLE_DEVICES=GPU-1", "CUDA_MPS_PIPE_DIRECTORY=/run/mps", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1M",
			}},
		},
		"no daemon": {
			&policy.Partition{Gpus: []string{"gpu0"}, ThreadPercentage: 40, MemoryLimitBytes: 8 << 30}, &policy.GPU{Uuid: "GPU-1"}, mps.Daemon{PipeDirectory: "/run/mps"},
			mps.Share{Environment: []string{"CUDA_VISIBLE_DEVICES=GPU-1"}, Reason: "no MPS control daemon answers in /run/mps"},
		},
		"emulated": {
			&policy.Partition{Gpus: []string{"gpu0"}, ThreadPercentage: 40}, &policy.GPU{Id: "gpu0", Emulated: true}, running,
			mps.Share{Environment: []string{"CUDA_VISIBLE_DEVICES="}, Reason: "the GPU is emulated"},
		},
		"on CPUs": {
			&policy.Partition{Node: "n", ThreadPercentage: 40, MemoryLimitBytes: 8 << 30}, &policy.GPU{Id: "cpu"}, running,
			mps.Share{Environment: []string{"CUDA_VISIBLE_DEVICES="}, Reason: "the partition is on CPUs, of which MPS knows nothing"},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, mps.Of(c.p, c.g, c.d)) })
	}
}

// The daemon is asked, by a fake of its own client.
func TestDetect(t *testing.T) {
	dir := t.TempDir()
	control := func(script string) string {
		path := filepath.Join(t.TempDir(), mps.ControlProgram)
		require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nread command\n"+script), 0o700))
		return path
	}
	lives := control(`test "$command $CUDA_MPS_PIPE_DIRECTORY" = "get_default_active_thread_percentage ` + dir + `" && echo 80.0`)
	require.Contains(t, mps.Detect(t.Context(), dir, lives).Reason, "no MPS control daemon has its pipe in "+dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "control"), nil, 0o600))
	require.False(t, mps.Detect(t.Context(), dir, lives).Running, "a plain file is no daemon")
	require.NoError(t, os.Remove(filepath.Join(dir, "control")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "control"), 0o600))
	found := mps.Detect(t.Context(), dir, lives)
	require.True(t, found.Running, found.Reason)
	require.Equal(t, dir, found.PipeDirectory)
	require.InDelta(t, 80, found.ThreadPercentage, 0)
	for script, why := range map[string]string{
		"echo Cannot find MPS control daemon process; exit 1": "does not answer: Cannot find MPS control daemon process",
		"echo what":       `answers "what", which is no thread percentage`,
		"exec sleep 1000": "did not answer within",
	} {
		d := mps.Detect(t.Context(), dir, control(script))
		require.False(t, d.Running, script)
		require.Contains(t, d.Reason, why)
	}
	require.Contains(t, mps.Detect(t.Context(), dir, "no-such-program").Reason, "is not on the path")
	require.Equal(t, mps.DefaultPipeDirectory, mps.Detect(t.Context(), "", "").PipeDirectory)
}

// A fatal fault of a client shows in the status of its server.
func TestFaulted(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "control"), 0o600))
	for name, c := range map[string]struct {
		answers string
		faulted bool
		err     string
	}{
		"no server runs yet":     {answers: `get_server_list) ;;`},
		"all is well":            {answers: `get_server_list) echo 41; echo 42 ;; "get_server_status "4?) echo ACTIVE ;;`},
		"one has faulted":        {answers: `get_server_list) echo 41; echo 42 ;; "get_server_status 41") echo ACTIVE ;; "get_server_status 42") echo FAULT ;;`, faulted: true},
		"the list is none":       {answers: `get_server_list) echo what ;;`, err: `lists "what", which is no server`},
		"the daemon has gone":    {answers: `get_server_list) echo Cannot find MPS control daemon process; exit 1 ;;`, err: "does not answer: Cannot find"},
		"a server ended between": {answers: `get_server_list) echo 41 ;; *) echo Server 41 not found; exit 1 ;;`, err: "Server 41 not found"},
	} {
		t.Run(name, func(t *testing.T) {
			control := filepath.Join(t.TempDir(), mps.ControlProgram)
			script := "#!/bin/sh\nread command\ncase $command in get_default_active_thread_percentage) echo 100.0 ;; " + c.answers + " esac\n"
			require.NoError(t, os.WriteFile(control, []byte(script), 0o700))
			faulted, err := mps.Detect(t.Context(), dir, control).Faulted(t.Context())
			require.Equal(t, c.faulted, faulted)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
	faulted, err := mps.Daemon{}.Faulted(t.Context())
	require.False(t, faulted)
	require.NoError(t, err)
}
