// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestConnectionsToAnOwnerEnd: the system ends those whose packets are dropped, as soon as gRPC's pings end theirs.
func TestConnectionsToAnOwnerEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	r, err := newReign(Owner{Name: "a", HTTP: l.Addr().String()})
	require.NoError(t, err)
	defer r.end()
	c, err := r.transport.DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var milliseconds int
	require.NoError(t, raw.Control(func(fd uintptr) {
		milliseconds, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}))
	require.NoError(t, err)
	require.EqualValues(t, (pingAfter + pingPatience).Milliseconds(), milliseconds)
}
