// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"syscall"
)

// descriptors is how many files the process may have open. The Go runtime has
// raised the limit to the highest that is allowed.
func descriptors() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return min(limit.Cur, math.MaxInt32)
}
