// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// peer is the user at the other end of a unix socket (SO_PEERCRED of unix(7)).
func peer(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	return credentials.Uid, nil
}
