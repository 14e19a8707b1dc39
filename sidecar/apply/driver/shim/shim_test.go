// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
)

// The test binary is the shim, and a conch that dies.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "shim" {
		os.Exit(shim.Main(os.Args[2]))
	}
	if dir := os.Getenv("DYING_CONCH"); dir != "" {
		h, err := start(dir, "one", "trap '' TERM; sleep 1000 & wait")
		fmt.Println(h != nil, err)
		select {}
	}
	goleak.VerifyTestMain(m)
}

// start starts a shell script as server.
func start(root, name, script string, change ...func(*shim.Spec)) (*shim.Handle, error) {
	s := shim.Spec{
		Name: unique(root, name), Label: map[string]string{"partition": name},
		Command: "/bin/sh", Args: []string{"-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")},
		Log: filepath.Join(root, name+".log"), LogBytes: 1 << 20, LogFiles: 2, OrphanGrace: time.Minute, StopTimeout: time.Second,
	}
	for _, c := range change {
		c(&s)
	}
	if err := os.MkdirAll(filepath.Join(root, "run"), 0o700); err != nil {
		return nil, err
	}
	return shim.Start(context.Background(), []string{os.Args[0], "shim"}, filepath.Join(root, "run", s.Name), s)
}

// find finds the shims below root and cleans up after the others.
func find(root string) ([]*shim.Handle, error) {
	found, clean, err := shim.Find(filepath.Join(root, "run"))
	return found, errors.Join(err, clean())
}

func runs(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func ended(t *testing.T, h *shim.Handle) {
	t.Helper()
	select {
	case <-h.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("the server has not ended")
	}
}

// children are the processes whose parent is pid.
func children(pid int) (all []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		// The name, in parentheses, may hold anything; after it come state and parent.
		if fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			all = append(all, child)
		}
	}
	return all
}

// childOf awaits a process whose parent is pid and whose name is as given.
func childOf(t *testing.T, pid int, name string) (child int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, c := range children(pid) {
			if text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c), "comm")); strings.TrimSpace(string(text)) == name {
				child = c
			}
		}
		return child > 0
	}, time.Minute, 5*time.Millisecond)
	return child
}

func TestServerEndsByItself(t *testing.T) {
	root := t.TempDir()
	h, err := start(root, "one", `echo said; echo 'E1121 03:17:42.123456 7 a.cc:1] "no memory"' >&2; exit 7`)
	require.NoError(t, err)
	ended(t, h)
	require.Equal(t, "tritonserver exited: exit status 7; it logged: no memory", h.Death())
	log, err := os.ReadFile(filepath.Join(root, "one.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "said\n")
	left, err := os.ReadDir(filepath.Join(root, "run"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestTerminateAndKill(t *testing.T) {
	h, err := start(t.TempDir(), "one", "sleep 1000")
	require.NoError(t, err)
	require.NoError(t, h.Terminate())
	ended(t, h)
	require.Equal(t, "tritonserver exited: signal: terminated", h.Death())

	// One that ignores SIGTERM is killed with its children.
	h, err = start(t.TempDir(), "two", "trap '' TERM; sleep 1000 & wait")
	require.NoError(t, err)
	child := childOf(t, h.ServerPID(), "sleep")
	require.NoError(t, h.Kill(context.Background()))
	require.Equal(t, "tritonserver exited: signal: killed", h.Death())
	require.False(t, runs(child))
}

// A stub that leaves the group and loses its parent is still found: by its
// environment, and because it became the shim's own child.
func TestOrphansOutsideTheGroup(t *testing.T) {
	root := t.TempDir()
	h, err := start(root, "one", `setsid sh -c 'echo $$ > `+root+`/orphan; exec sleep 1000' & sleep 1000`)
	require.NoError(t, err)
	var orphan int
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(filepath.Join(root, "orphan"))
		orphan, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return orphan > 0
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, syscall.Kill(h.ServerPID(), syscall.SIGKILL))
	ended(t, h)
	require.False(t, runs(orphan))
}

// Orphans are collected while the server runs: no zombies pile up.
func TestReapsOrphans(t *testing.T) {
	h, err := start(t.TempDir(), "one", `sh -c 'sleep 0.05 & sleep 0.05 &'; sleep 1000`)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Kill(context.Background())) }()
	childOf(t, h.ServerPID(), "sleep")
	require.Eventually(t, func() bool {
		return len(children(h.ShimPID())) == 1 // the server alone
	}, time.Minute, 10*time.Millisecond)
}

func TestShimKilledTakesItsServerAlong(t *testing.T) {
	root := t.TempDir()
	h, err := start(root, "one", "sleep 1000 & wait")
	require.NoError(t, err)
	child := childOf(t, h.ServerPID(), "sleep")
	require.NoError(t, syscall.Kill(h.ShimPID(), syscall.SIGKILL))
	ended(t, h)
	require.Contains(t, h.Death(), "the shim of the server was killed")
	require.Eventually(t, func() bool { return !runs(h.ServerPID()) && !runs(child) }, time.Minute, time.Millisecond)
}

func TestSharedMemoryIsRemoved(t *testing.T) {
	root := t.TempDir()
	prefix := "conch-test-" + strconv.Itoa(os.Getpid()) + "-"
	h, err := start(root, "one", "echo x > /dev/shm/"+prefix+"region; echo done > "+root+"/done; sleep 1000", func(s *shim.Spec) { s.SharedMemory = prefix })
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := os.Stat(root + "/done"); return err == nil }, time.Minute, time.Millisecond)
	require.NoError(t, h.Kill(context.Background()))
	require.NoFileExists(t, "/dev/shm/"+prefix+"region")
}

func TestLogRotates(t *testing.T) {
	root := t.TempDir()
	h, err := start(root, "one", `i=0; while [ $i -lt 100 ]; do echo "line $i of a log"; i=$((i+1)); done`, func(s *shim.Spec) { s.LogBytes, s.LogFiles = 500, 3 })
	require.NoError(t, err)
	ended(t, h)
	files, err := filepath.Glob(filepath.Join(root, "one.log*"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, f := range files {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(520))
	}
	last, err := os.ReadFile(filepath.Join(root, "one.log"))
	require.NoError(t, err)
	require.Contains(t, string(last), "line 99 of a log\n")
}

// Conch lets go, and another finds the same server.
func TestReattach(t *testing.T) {
	root := t.TempDir()
	h, err := start(root, "one", "sleep 1000")
	require.NoError(t, err)
	require.NoError(t, h.Close())
	<-h.Done()

	found, err := find(root)
	require.NoError(t, err)
	require.Len(t, found, 1)
	again := found[0]
	require.Equal(t, h.ServerPID(), again.ServerPID())
	require.Equal(t, map[string]string{"partition": "one"}, again.Label())
	require.True(t, runs(again.ServerPID()))
	require.NoError(t, again.Kill(context.Background()))
}

// Conch is killed: its servers keep running, and end after the grace without a new conch.
func TestConchIsKilled(t *testing.T) {
	root := t.TempDir()
	conch := exec.Command(os.Args[0])
	conch.Env = append(os.Environ(), "DYING_CONCH="+root)
	output, err := conch.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, conch.Start())
	line := make([]byte, 100)
	n, err := output.Read(line)
	require.NoError(t, err)
	require.Equal(t, "true <nil>\n", string(line[:n]))
	require.NoError(t, conch.Process.Kill())
	require.Error(t, conch.Wait())

	found, err := find(root)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.True(t, runs(found[0].ServerPID()))
	require.NoError(t, found[0].Kill(context.Background()))
}

func TestOrphanGrace(t *testing.T) {
	root := t.TempDir()
	h, err := start(root, "one", "trap '' TERM; sleep 1000 & wait", func(s *shim.Spec) {
		s.OrphanGrace, s.StopTimeout = 50*time.Millisecond, 50*time.Millisecond
	})
	require.NoError(t, err)
	require.True(t, runs(h.ServerPID()), "while conch is there the grace does not run")
	require.NoError(t, h.Close())
	require.Eventually(t, func() bool { return !runs(h.ServerPID()) && !runs(h.ShimPID()) }, time.Minute, 5*time.Millisecond)
	found, err := find(root)
	require.NoError(t, err)
	require.Empty(t, found)
	left, err := os.ReadDir(filepath.Join(root, "run"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// What is written down may be of a process that is long gone, and its number
// another's by now.
func TestFindTakesNoStranger(t *testing.T) {
	root := t.TempDir()
	stranger := exec.Command("sleep", "1000")
	require.NoError(t, stranger.Start())
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	dir := filepath.Join(root, "run", "conch-test-gone")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	text := fmt.Sprintf(`{"name":"conch-test-gone","shim":{"pid":%d,"start":1},"server":{"pid":%d,"start":1},"boot":""}`, stranger.Process.Pid, stranger.Process.Pid)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shim.json"), []byte(text), 0o600))
	found, err := find(root)
	require.NoError(t, err)
	require.Empty(t, found)
	require.True(t, runs(stranger.Process.Pid))
	require.NoDirExists(t, dir)
}

// A number is not enough to be signalled.
func TestSignalMeansOneProcess(t *testing.T) {
	p := exec.Command("sleep", "1000")
	require.NoError(t, p.Start())
	identity, err := shim.Identity(p.Process.Pid)
	require.NoError(t, err)
	of := strings.Fields(identity)
	require.ErrorIs(t, shim.Signal(of[0]+" 1 "+of[2], syscall.SIGKILL), syscall.ESRCH, "another process of that number")
	require.ErrorIs(t, shim.Signal(of[0]+" "+of[1]+" another-boot", syscall.SIGKILL), syscall.ESRCH)
	require.True(t, runs(p.Process.Pid))
	require.NoError(t, shim.Signal(identity, syscall.SIGKILL))
	require.Error(t, p.Wait())
	require.ErrorIs(t, shim.Signal(identity, syscall.SIGKILL), syscall.ESRCH)
}

func TestStartFails(t *testing.T) {
	root := t.TempDir()
	_, err := start(root, "one", "", func(s *shim.Spec) { s.Command = "/nowhere/tritonserver" })
	require.ErrorContains(t, err, "no such file or directory")
	require.NoDirExists(t, filepath.Join(root, "run", unique(root, "one")))
}

// unique is a server's name that no other test has.
func unique(root, name string) string {
	return fmt.Sprintf("conch-test-%08x-%s", crc32.ChecksumIEEE([]byte(root)), name)
}

// A shim that hangs before it has begun is given up, and nothing of it is left.
func TestAShimThatHangs(t *testing.T) {
	root := t.TempDir()
	s := shim.Spec{Name: unique(root, "one"), Command: "/bin/sh", Log: filepath.Join(root, "one.log")}
	dir := filepath.Join(root, s.Name)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("its time is up"))
	_, err := shim.Start(ctx, []string{"/bin/sh", "-c", "exec sleep 1000"}, dir, s)
	require.ErrorContains(t, err, "it did not begin in time: its time is up")
	require.NoDirExists(t, dir)
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, p := range processes {
		if text, err := os.ReadFile(p); err == nil {
			require.NotContains(t, string(text), "CONCH_SERVER="+s.Name)
		}
	}
}
