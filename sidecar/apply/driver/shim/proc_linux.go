// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sharedMemoryDir is where Linux keeps named shared memory.
const sharedMemoryDir = "/dev/shm"

// identify is a process with its start time, field 22 of /proc/PID/stat.
func identify(pid int) (process, error) {
	fields, err := stat(pid)
	if err != nil {
		return process{}, err
	}
	// After the name the fields count from 3, the state.
	start, err := strconv.ParseUint(fields[22-3], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	return process{PID: pid, Start: start}, nil
}

// stat are the fields of /proc/PID/stat from the third on. The second, the
// name, may hold anything.
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields after the name", pid, len(fields))
	}
	return fields, nil
}

// runs reports that the very process is there and more than a zombie.
func (p process) runs() bool {
	now, err := identify(p.PID)
	if err != nil || now != p {
		return false
	}
	fields, err := stat(p.PID)
	return err == nil && fields[0] != "Z" && fields[0] != "X"
}

// boot identifies the time since the machine started: process ids and start
// times mean nothing beyond it.
func boot() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
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

// killMarked kills every process whose environment has one of the names, and
// waits until they are gone. A process that has ended and is not reaped counts as gone.
func killMarked(names ...string) error {
	if len(names) == 0 {
		return nil
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		left := 0
		for _, pid := range pids() {
			is := func() bool {
				environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
				return err == nil && marked(environment, names)
			}
			if pid == os.Getpid() || !is() {
				continue
			}
			left++
			if err := signalIf(pid, unix.SIGKILL, is); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes survive SIGKILL", left)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// signalIf signals a process if it is still the one that is meant: between a look
// at a number and a signal to it the number may have become another's. The
// process is held by a descriptor while is looks; where the kernel has none (before
// 5.3, or forbidden) the number has to do.
func signalIf(pid int, s unix.Signal, is func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		if !is() {
			return unix.ESRCH
		}
		return unix.Kill(pid, s)
	case err != nil:
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if !is() {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(fd, s, nil, 0)
}

// Signal signals the process of an Identity, and no other.
func Signal(identity string, s unix.Signal) error {
	number, _, _ := strings.Cut(identity, " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("%q is no process", identity)
	}
	return signalIf(pid, s, func() bool {
		now, err := Identity(pid)
		return err == nil && now == identity
	})
}

func marked(environment []byte, names []string) bool {
	_, after, found := bytes.Cut(append([]byte{0}, environment...), []byte("\x00"+NameVariable+"="))
	if !found {
		return false
	}
	value, _, _ := bytes.Cut(after, []byte{0})
	for _, n := range names {
		if string(value) == n {
			return true
		}
	}
	return false
}

// RemoveSharedMemory removes the named shared memory whose names begin with
// prefix.
func RemoveSharedMemory(prefix string) error {
	if prefix == "" {
		return nil
	}
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

// Identity names a process such that no other can be mistaken for it: its id, its
// start time and the boot of the machine.
func Identity(pid int) (string, error) {
	p, err := identify(pid)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %d %s", p.PID, p.Start, boot()), nil
}
