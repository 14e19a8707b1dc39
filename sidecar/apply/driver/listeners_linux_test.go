// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The kernel's answer is what its tables say, of whichever family. It runs alone: a server of a test beside it may get the same port of the other family,
// or get it as soon as it is closed.
func TestListeners(t *testing.T) {
	for _, at := range []struct{ network, address string }{{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}, {"tcp", ":0"}} {
		l, err := net.Listen(at.network, at.address)
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		conn, err := net.Dial(at.network, l.Addr().String())
		require.NoError(t, err)
		sockets, err := listeners(port)
		require.NoError(t, err)
		require.Len(t, sockets, 1, "%s: the listener, and not the connection", at.network)
		require.Equal(t, tabled(port), sockets, at.network)
		require.True(t, listensIn(syscall.Getpgrp(), port), at.network)
		require.False(t, listensIn(1<<23, port), "%s: another group's", at.network)
		require.NoError(t, conn.Close())
		require.NoError(t, l.Close())
		require.False(t, listensIn(syscall.Getpgrp(), port), "%s: it is closed", at.network)
	}
}

func BenchmarkListeners(b *testing.B) {
	b.Run("asked", func(b *testing.B) {
		for b.Loop() {
			_, _ = listeners(1)
		}
	})
	b.Run("tabled", func(b *testing.B) {
		for b.Loop() {
			tabled(1)
		}
	})
}

// A dump that fails ends with a message of its end that has the error: a kernel that has inet_diag, and not tcp_diag, answers so.
func TestADumpThatFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		errno int32
		want  error
	}{"complete": {0, nil}, "without tcp_diag": {-int32(unix.ENOENT), unix.ENOENT}} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		end := make([]byte, unix.NLMSG_HDRLEN+4)
		binary.NativeEndian.PutUint32(end, uint32(len(end)))
		binary.NativeEndian.PutUint16(end[4:], unix.NLMSG_DONE)
		binary.NativeEndian.PutUint32(end[unix.NLMSG_HDRLEN:], uint32(c.errno))
		require.NoError(t, unix.Sendto(pair[0], end, 0, nil))
		require.Equal(t, c.want, inodes(pair[1], map[string]bool{}), name)
		require.NoError(t, errors.Join(unix.Close(pair[0]), unix.Close(pair[1])))
	}
}
