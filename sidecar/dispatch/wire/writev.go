// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package wire

import "golang.org/x/sys/unix"

// writev writes pieces with one system call.
func writev(fd int, pieces [][]byte) (int, error) { return unix.Writev(fd, pieces) }
