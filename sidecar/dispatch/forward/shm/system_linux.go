// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// directory is where Linux keeps named shared memory.
const directory = "/dev/shm"

// newSlab makes a shared memory object of that name and maps it. The memory is
// reserved, because a write to a full tmpfs would end the process.
func newSlab(name string, size int64) (s *slab, err error) {
	path := filepath.Join(directory, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		return nil, fmt.Errorf("shared memory: reserve %d bytes in %s: %w", size, directory, err)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory: map %d bytes: %w", size, err)
	}
	return &slab{region: name, memory: memory, free: []span{{0, int(size)}}}, nil
}

func unmap(memory []byte) {
	// Only an address that is no mapping makes it fail.
	_ = unix.Munmap(memory)
}

func unlink(name string) error { return os.Remove(filepath.Join(directory, name)) }

// openObject opens a shared memory object as shm_open does, to read.
func openObject(key string) (*os.File, error) {
	name := strings.TrimLeft(key, "/")
	if name == "" || name != filepath.Base(name) || name == ".." {
		return nil, fmt.Errorf("shared memory: %q is no name of an object", key)
	}
	f, err := os.OpenFile(filepath.Join(directory, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return f, nil
}

// lacks reports whether an object has no page for its byte before end.
func lacks(object *os.File, end uint64) bool {
	var info unix.Stat_t
	if err := unix.Fstat(int(object.Fd()), &info); err != nil {
		return false
	}
	page := uint64(os.Getpagesize())
	return (uint64(info.Size)+page-1)/page*page < end
}
