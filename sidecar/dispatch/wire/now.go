// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package wire

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of a short system call that does not wait the runtime is not told. Told, it wakes its monitor thread for the first system call after the process has idled, to
// take the goroutine's processor away if the call lasts: with a single caller that is a wake-up for every message, and a quarter of the processor time. What it costs:
// the garbage collector waits for the call, which takes some 50 us at the most, and the monitor, which interrupts goroutines that run for more than 10 ms,
// sleeps until any other system call is made, or a timer is due.
const (
	short = 128 << 10
	// shortVector is how many pieces such a write has.
	shortVector = 8
)

// readNow reads from a socket that does not block.
func readNow(fd int, p []byte) (int, error) {
	if len(p) == 0 || len(p) > short {
		return syscall.Read(fd, p)
	}
	n, _, failed := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if failed != 0 {
		return 0, failed
	}
	return int(n), nil
}

// writeNow writes pieces to a socket that does not block, with one system call.
func writeNow(fd int, pieces [][]byte, vector *[shortVector]unix.Iovec) (int, error) {
	of, size := 0, 0
	for _, p := range pieces {
		if size += len(p); of == shortVector || size > short {
			return unix.Writev(fd, pieces)
		}
		if len(p) > 0 {
			vector[of].Base = unsafe.SliceData(p)
			vector[of].SetLen(len(p))
			of++
		}
	}
	if of == 0 {
		return 0, nil
	}
	n, _, failed := syscall.RawSyscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(vector)), uintptr(of))
	clear(vector[:of])
	if failed != 0 {
		return 0, failed
	}
	return int(n), nil
}
