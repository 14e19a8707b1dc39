// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package wire

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const shortVector = 8

func readNow(fd int, p []byte) (int, error) { return syscall.Read(fd, p) }

// writeNow writes pieces one by one: the race detector knows that who reads from a socket comes after who has written, for the calls of package syscall only.
func writeNow(fd int, pieces [][]byte, _ *[shortVector]unix.Iovec) (written int, err error) {
	for _, p := range pieces {
		n, err := syscall.Write(fd, p)
		if n > 0 {
			written += n
		}
		if written > 0 && err != nil {
			return written, nil // the next call has the error
		}
		if err != nil || n < len(p) {
			return written, err
		}
	}
	return written, nil
}
