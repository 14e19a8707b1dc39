// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/zoo"
)

// needRoot skips where mounts and users cannot be made.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: no namespace with mounts and other users can be made here")
	}
}

// contained is conch as the first process of namespaces of its own, with the /proc, /dev and /tmp that a container runtime makes and the network of its
// host.
type contained struct {
	command *exec.Cmd
	out     *bytes.Buffer
	metrics string
}

// embedded are flags for a conch without servers of its own.
const embedded = "--driver embedded"

// contain runs `conch init` in a root file system, as conch's user there, with flags that say where servers come from. Before is a shell's setup of the
// root file system, in the new mount namespace.
func contain(t *testing.T, before, root, user, program, flags string) *contained {
	t.Helper()
	var ports [3]string
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ports[i] = l.Addr().String()
		require.NoError(t, l.Close())
	}
	script := fmt.Sprintf(`set -e
		mount --make-rprivate /
		%s
		mount -t proc proc %[2]s/proc
		mount -t tmpfs tmpfs %[2]s/tmp
		mount -t tmpfs -o mode=755 tmpfs %[2]s/dev
		mkdir -m 1777 %[2]s/dev/shm
		for device in null zero random urandom; do touch %[2]s/dev/$device; mount --bind /dev/$device %[2]s/dev/$device; done
		exec chroot --userspec=%[3]s %[2]s %[4]s init -- %[8]s --repository /models --state /var/lib/conch --admin unix:///run/conch/admin.sock \
			--grpc %[5]s --http %[6]s --metrics %[7]s --log-format json`, before, root, user, program, ports[0], ports[1], ports[2], flags)
	c := &contained{out: &bytes.Buffer{}, metrics: ports[2]}
	c.command = exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c", script)
	c.command.Stdout, c.command.Stderr = c.out, c.out
	c.command.WaitDelay = 10 * time.Second
	require.NoError(t, c.command.Start())
	t.Cleanup(func() {
		_ = c.command.Process.Kill()
		_ = c.command.Wait()
		if t.Failed() {
			t.Logf("conch's log:\n%s", c.out)
		}
	})
	return c
}

// children are the processes that a process started and that live.
func children(t *testing.T, pid int) (all []int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	for _, field := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(field)
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}

// conch is the process id of conch itself, below `conch init`, or 0.
func (c *contained) conch(t *testing.T) (first, conch int) {
	for _, first = range children(t, c.command.Process.Pid) {
		for _, conch = range childrenOfThreads(t, first) {
			return first, conch
		}
	}
	return 0, 0
}

// childrenOfThreads are the children of all threads of a process: Linux lists a child with the thread that started it.
func childrenOfThreads(t *testing.T, pid int) (all []int) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(field)
			require.NoError(t, err)
			all = append(all, n)
		}
	}
	return all
}

func (c *contained) awaitReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, err := http.Get("http://" + c.metrics + "/readyz") //nolint:noctx // on this machine
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, 2*time.Minute, 50*time.Millisecond, "conch is ready")
}

// requireSurvivesACrash kills conch, waits for its next life and stops it in order. What is between is checked before the crash and after it.
func (c *contained) requireSurvivesACrash(t *testing.T, uid int, between ...func(t *testing.T)) {
	t.Helper()
	c.awaitReady(t)
	first, before := c.conch(t)
	require.NotZero(t, before)
	info, err := os.Stat(fmt.Sprintf("/proc/%d", before))
	require.NoError(t, err)
	owner, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	require.EqualValues(t, uid, owner.Uid, "conch is not root")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", first))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^NSpid:\t\d+\t1$`, string(status), "`conch init` is the first process")

	for _, check := range between {
		check(t)
	}
	require.NoError(t, syscall.Kill(before, syscall.SIGKILL))
	require.Eventually(t, func() bool { _, now := c.conch(t); return now != 0 && now != before }, time.Minute, 20*time.Millisecond, "conch is started again")
	c.awaitReady(t)
	for _, check := range between {
		check(t)
	}
	require.NoError(t, syscall.Kill(first, syscall.SIGTERM))
	require.NoError(t, c.command.Wait(), "SIGTERM to the first process ends it in order")
}

// models writes a repository of an emulated model that every user may read.
func models(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, zoo.Write(dir, zoo.Model{
		Name: "quick", MaxBatchSize: 8, ModelPy: pymodels.Emulate, Profile: zoo.Profile{Model: "quick", Alpha: time.Millisecond, Beta: time.Millisecond, SLO: time.Second},
	}))
	run(t, "chmod", "-R", "a+rX", dir)
}

// The root file system that the Dockerfile's image has serves as user 65532, with nothing else of the host's files, and `conch init` as its
// first process starts conch again.
func TestImage(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	run(t, "cp", "-a", filepath.Join(setting(t, "CONCH_BIN"), "rootfs")+"/.", root)
	require.NoError(t, os.Chmod(root, 0o755))
	models(t, filepath.Join(root, "models"))
	contain(t, "", root, "65532:65532", "/usr/bin/conch", embedded).requireSurvivesACrash(t, 65532)
}

// So it does in a Pod: on a read-only root file system, with volumes that are root's and writable by every user, as an emptyDir is.
func TestImageInAPod(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	run(t, "cp", "-a", filepath.Join(setting(t, "CONCH_BIN"), "rootfs")+"/.", root)
	require.NoError(t, os.Chmod(root, 0o755))
	models(t, filepath.Join(root, "models"))
	volumes := fmt.Sprintf(`mount --bind %[1]s %[1]s && mount -o remount,bind,ro %[1]s
		for volume in var/lib/conch run/conch; do mount -t tmpfs -o mode=777 tmpfs %[1]s/$volume; done
		if touch %[1]s/file 2>/dev/null; then echo "the root file system is open"; exit 1; fi`, root)
	contain(t, volumes, root, "65532:65532", "/usr/bin/conch", embedded).requireSurvivesACrash(t, 65532)
}

// running are the processes whose program is at a path.
func running(t *testing.T, path string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(text), path+"\x00") {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// The Debian package is installed, serves as the user that it makes, and is removed without a trace, in a copy-on-write view of this machine. The server
// that conch has started outlives its crash, because its parent then is the first process, and the next conch finds it.
func TestPackage(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"root", "models"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	models(t, filepath.Join(dir, "models"))
	deb := filepath.Join(setting(t, "CONCH_BIN"), "package", "conch.deb")
	overlay := fmt.Sprintf(`
		mount -t tmpfs tmpfs %[1]s
		mkdir %[1]s/upper %[1]s/work %[1]s/merged
		mount -t overlay overlay -o lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work %[1]s/merged
		cp %[2]s %[1]s/merged/conch.deb
		mkdir -p %[1]s/merged/models && cp -r %[3]s/. %[1]s/merged/models/`, root, deb, filepath.Join(dir, "models"))
	merged := filepath.Join(root, "merged")
	inside := func(script string) string {
		t.Helper()
		return run(t, "unshare", "--mount", "sh", "-ec", "mount --make-rprivate /\n"+overlay+"\nmount -t proc proc "+merged+"/proc\nchroot "+merged+" sh -exc '"+script+"'")
	}
	output := inside(`
		dpkg -i /conch.deb
		id conch
		conch --version
		tritonctl --help > /dev/null
		conch config check /etc/conch/conch.yaml
		test "$(stat -c %U /etc/conch/conch.yaml)" = root
		systemd-analyze verify /usr/lib/systemd/system/conch.service
		echo "# mine" >> /etc/conch/conch.yaml
		dpkg -r conch
		test ! -e /usr/bin/conch && test ! -e /usr/lib/conch && grep -q mine /etc/conch/conch.yaml
		dpkg -P conch
		test ! -e /etc/conch && test ! -e /var/lib/conch && ! getent passwd conch`)
	require.Contains(t, output, "is valid: mode observe, driver attach")

	install := overlay + "\nchroot " + merged + " dpkg -i /conch.deb\nchroot " + merged + " install -d -o conch -m 0700 /var/lib/conch /run/conch\n" +
		"chroot " + merged + " usermod -u 4242 conch; chroot " + merged + " chown -R conch /var/lib/conch /run/conch\n"
	server := fmt.Sprintf("/server-%d", os.Getpid()) // a minitriton
	install += fmt.Sprintf("cp %[1]s %[2]s%[3]s\nprintf '#!/bin/sh\\nexec %[3]s minitriton \"$@\"\\n' >%[2]s/tritonserver\nchmod 755 %[2]s/tritonserver\n",
		filepath.Join(setting(t, "CONCH_BIN"), "conch-bench"), merged, server)
	var servers [][]string
	contain(t, install, merged, "conch:conch", "/usr/bin/conch", "--tritonserver /tritonserver").requireSurvivesACrash(t, 4242, func(t *testing.T) {
		servers = append(servers, running(t, server))
	})
	require.Len(t, servers[0], 1)
	require.Equal(t, servers[0], servers[1])
	require.Empty(t, running(t, server), "SIGTERM ends the server too")
}

// The tarball has the three programs, which find one another.
func TestTarball(t *testing.T) {
	dir := t.TempDir()
	run(t, "tar", "-C", dir, "-xzf", filepath.Join(setting(t, "CONCH_BIN"), "package", "conch.tar.gz"))
	for _, program := range []string{"conch", "conch-policies", "tritonctl"} {
		require.FileExists(t, filepath.Join(dir, "conch", program))
	}
	require.Contains(t, run(t, filepath.Join(dir, "conch", "conch"), "--version"), "conch ")
}
