// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
)

// A goroutine that asks the network gives way to those for whom something has come, though it is ready itself. On one processor, runtime.Gosched does not: the runtime looks at the
// network where nobody else is ready.
func TestAskNetwork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _, _ = r.Close(), w.Close() }()
	var got atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buf := make([]byte, 1); ; got.Add(1) {
			if _, err := r.Read(buf); err != nil {
				return
			}
		}
	}()
	for i := range int64(100) {
		for range 10 { // until the other waits again
			runtime.Gosched()
		}
		_, err := w.Write([]byte{0})
		require.NoError(t, err)
		for range 2 { // every 61st time, the runtime prefers who has given way
			askNetwork()
		}
		require.Greater(t, got.Load(), i, "it is not its turn")
	}
	require.NoError(t, w.Close())
	<-ended
}

// However many goroutines ask the network at once, they take few descriptors.
func TestFewPipesAskTheNetwork(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("only Linux lists what a process has open")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	before := open()
	var running sync.WaitGroup
	for range 200 {
		running.Go(askNetwork)
	}
	runtime.Gosched()
	require.LessOrEqual(t, open(), before+2*mostAsks)
	running.Wait()
	require.Zero(t, asking.Load())
}

// A goroutine that reads without a wait asks the network once it has handled so much, and one that waits does not.
func TestTurnsAskTheNetwork(t *testing.T) {
	var of turns
	for range 2 * longNetwork / longTurn {
		of.add(longTurn)
		of.waited()
		require.Zero(t, of.since)
		of.rest()
	}
	for of.add(longTurn); of.since <= longNetwork; of.add(longTurn) {
		before := of.since
		of.rest()
		require.Equal(t, before, of.since)
	}
	of.rest()
	require.Zero(t, of.since)
}

// Whether a read has waited is known of those by ReadOnReady only. One behind more than mostRest bytes is none: a goroutine that reads nothing but such frames would count as one that waits.
func TestOnlyReadsThatSayThatTheyWaitedDo(t *testing.T) {
	in := newIntake(waiting{}, false, mem.DefaultBufferPool())
	require.NoError(t, in.more())
	require.True(t, in.waited())
	require.NoError(t, in.more())
	require.False(t, in.waited())
	in.take(len(in.data) - mostRest)
	require.NoError(t, in.more())
	require.True(t, in.waited())
	in.release()
}

// waiting is a connection whose ReadOnReady waits.
type waiting struct{ net.Conn }

func (waiting) Read([]byte) (int, error) { return 1, nil }

func (waiting) Waited() bool { return true }

func (waiting) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	return pool.Get(size), mostRest + 1, nil
}
