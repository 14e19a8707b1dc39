// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The kernel's answer is what its tables say, of whichever family.
func TestListeners(t *testing.T) {
	t.Parallel()
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
