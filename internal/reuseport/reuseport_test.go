// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package reuseport_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/internal/reuseport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// accepting counts a listener's connections.
type accepting struct {
	*net.TCPListener
	n    atomic.Int64
	done chan struct{}
}

func accept(l *net.TCPListener) *accepting {
	a := &accepting{TCPListener: l, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.n.Add(1)
			_ = c.Close()
		}
	}()
	return a
}

func (a *accepting) end(t *testing.T) {
	require.NoError(t, a.Close())
	<-a.done
}

// dial makes n connections one after the other.
func dial(t *testing.T, address string, n int) {
	for range n {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}

// TestYield: two share, then the first gets nothing more, generation after
// generation.
func TestYield(t *testing.T) {
	l, err := reuseport.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	old := accept(l)
	for range 4 {
		require.NoError(t, reuseport.Check(address))
		l, err := reuseport.Listen(t.Context(), address)
		require.NoError(t, err)
		next := accept(l)
		dial(t, address, 64)
		require.Eventually(t, func() bool { return old.n.Load()+next.n.Load() == 64 }, 30*time.Second, time.Millisecond)
		require.Positive(t, old.n.Load(), "both take their share")
		require.Positive(t, next.n.Load(), "both take their share")

		require.NoError(t, reuseport.Yield(old.TCPListener, 1))
		before := old.n.Load()
		dial(t, address, 64)
		require.Eventually(t, func() bool { return old.n.Load()+next.n.Load() == 128 }, 30*time.Second, time.Millisecond)
		require.Equal(t, before, old.n.Load(), "all go to the other")
		old.end(t)
		old = next
		old.n.Store(0)
	}
	require.NoError(t, reuseport.Yield(old.TCPListener, 1))
	dial(t, address, 8) // where there is no other they still come
	require.Eventually(t, func() bool { return old.n.Load() == 8 }, 30*time.Second, time.Millisecond)
	old.end(t)
}

func TestCheckSeesAStranger(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	require.ErrorContains(t, reuseport.Check(l.Addr().String()), "address already in use")
	_, err = reuseport.Listen(t.Context(), l.Addr().String())
	require.ErrorContains(t, err, "address already in use")
}
