// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// socketDirs begin the names of directories for sockets of policy processes.
const socketDirs = "conch-policy-"

// abandoned is after which time the directory of a conch that is gone is removed: one
// that is younger may be about to be locked.
const abandoned = time.Minute

// socketDir is a directory in which a policy process opens its socket. It is locked for
// as long as this process lives, by whatever way it ends, where the file system has
// locks.
type socketDir struct {
	path string
	lock *os.File
}

// newSocketDir makes a directory, and removes those of processes that were killed. A lock
// shows whether the process of a directory still runs, since process ids mean little where
// containers share a directory. On a file system without locks nothing is removed, and the
// directory of a killed conch stays. Lock is flock.
func newSocketDir(now time.Time, lock func(fd int) error) (*socketDir, error) {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), socketDirs+"*"))
	for _, path := range all {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < abandoned {
			continue
		}
		if dir, err := locked(path, lock); err == nil {
			_ = os.RemoveAll(path)
			_ = dir.Close()
		}
	}
	path, err := os.MkdirTemp("", socketDirs)
	if err != nil {
		return nil, err
	}
	dir, err := locked(path, lock)
	if errors.Is(err, errNoLocks) {
		return &socketDir{path: path}, nil
	}
	if err != nil {
		_ = os.RemoveAll(path)
		return nil, err
	}
	return &socketDir{path, dir}, nil
}

// errNoLocks: the file system has no locks.
var errNoLocks = errors.New("the file system has no locks")

// locked opens a directory and locks it. It fails if the directory is locked.
func locked(path string, lock func(fd int) error) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := lock(int(dir.Fd())); err != nil {
		_ = dir.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %w", errNoLocks, err)
		}
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	return dir, nil
}

// flock locks a file. It fails if the file is locked.
func flock(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) }

func (d *socketDir) remove() {
	_ = os.RemoveAll(d.path)
	if d.lock != nil {
		_ = d.lock.Close()
	}
}
