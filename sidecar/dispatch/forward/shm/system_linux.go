// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// directory is where Linux keeps named shared memory.
const directory = "/dev/shm"

// newSlab makes a shared memory object of that name and maps it. The memory is
// reserved: writing to a full tmpfs would kill the process.
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
