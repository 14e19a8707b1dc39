// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sharedMemoryDir is where Linux keeps named shared memory.
const sharedMemoryDir = "/dev/shm"

// ownGroup makes a child the head of a process group that dies with us.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killGroup kills a process group and waits until only the unreaped are left.
func killGroup(group int) error {
	for deadline := time.Now().Add(5 * time.Second); ; {
		if err := unix.Kill(-group, unix.SIGKILL); errors.Is(err, unix.ESRCH) {
			return nil
		} else if err != nil {
			return fmt.Errorf("kill process group %d: %w", group, err)
		}
		if !groupRuns(group) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process group %d survives SIGKILL", group)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// groupRuns reports that a process of the group is more than a zombie.
func groupRuns(group int) bool {
	for _, pid := range pids() {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		// pid (name) state parent group ...; the name may hold anything.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

func pids() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// killOwned kills every process whose environment names the owner, and counts
// them. They are servers of a conch that was killed, and their stubs.
func killOwned(owner string) (killed int, err error) {
	for deadline := time.Now().Add(5 * time.Second); ; {
		left := 0
		for _, pid := range pids() {
			environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
			if err != nil || pid == os.Getpid() || !bytes.Contains(append([]byte{0}, environment...), []byte("\x00CONCH_OWNER="+owner+"\x00")) {
				continue
			}
			left++
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return killed, fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		killed = max(killed, left)
		if left == 0 {
			return killed, nil
		}
		if time.Now().After(deadline) {
			return killed, fmt.Errorf("%d processes survive SIGKILL", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// removeSharedMemory removes the regions whose names begin with prefix.
func removeSharedMemory(prefix string) error {
	entries, err := os.ReadDir(sharedMemoryDir)
	if err != nil {
		return nil //nolint:nilerr // none is mounted, so that none was left
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if removing := os.Remove(filepath.Join(sharedMemoryDir, e.Name())); removing != nil && !errors.Is(removing, os.ErrNotExist) {
			err = errors.Join(err, removing)
		}
	}
	return err
}

// listensIn reports that the process, or another of its group, listens on the
// TCP port. Where that may not be seen it says yes.
func listensIn(group, port int) bool {
	sockets := map[string]bool{}
	for _, family := range []string{"tcp", "tcp6"} { // gRPC listens on ::ffff:127.0.0.1
		table, err := os.ReadFile("/proc/self/net/" + family)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	for _, pid := range pids() {
		if of, err := unix.Getpgid(pid); err != nil || of != group {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrPermission) {
			return true
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && sockets[to] {
				return true
			}
		}
	}
	return false
}
