// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package fronts

import (
	"log/slog"
	"math"
	"syscall"
)

// maxDescriptors is the part of the process's file descriptors that clients'
// connections may take; the rest is for files and partitions.
const maxDescriptors = 0.8

// MaxConnections is limits.connections, or what the process may have.
func MaxConnections(limit int, log *slog.Logger) int {
	if most := int(maxDescriptors * float64(descriptors())); limit > most {
		log.Info("fewer connections than limits.connections: the process may not open as many files", "connections", most, "limit", limit)
		return most
	}
	return limit
}

// descriptors is how many files the process may have open. The Go runtime has
// raised the limit to the highest that is allowed.
func descriptors() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	return min(limit.Cur, math.MaxInt32)
}
