// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bounded has the system end a connection whose peer acknowledges nothing for so long. Else a request that was written to a connection of which packets are dropped
// waits for as long as the system sends it again, which is a quarter of an hour.
func bounded(patience time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(patience.Milliseconds()))
		})
		if err != nil {
			return err
		}
		return set
	}
}
