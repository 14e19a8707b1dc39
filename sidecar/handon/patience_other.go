// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package handon

import (
	"syscall"
	"time"
)

// bounded bounds nothing where the system has no way to.
func bounded(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
