// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// TestLargeAnswersDelayNobody: in one turn, a goroutine answers 64 large calls of one connection and a small one of another. The small answer does not wait
// until the socket of the other connection has taken what it can: it is there within a millisecond. The least delay of several rounds is judged, because
// a busy machine makes others longer.
func TestLargeAnswersDelayNobody(t *testing.T) {
	const calls, size = 64, 600 << 10
	var mu sync.Mutex
	var held []*wire.Call
	all := make(chan struct{}, 1)
	large := random(size)
	h := &echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		small := m.Len() == 1
		if !small {
			m.Free()
			mu.Lock()
			if held = append(held, c); len(held) == calls {
				all <- struct{}{}
			}
			mu.Unlock()
			return
		}
		mu.Lock()
		for _, of := range held {
			of.Reply(c.Turn(), mem.BufferSlice{mem.SliceBuffer(large)})
			of.Done()
		}
		held = held[:0]
		mu.Unlock()
		c.Reply(c.Turn(), m)
		c.Done()
	}}
	s := serve(t, wire.Options{Method: echo, Handler: h, MaxMessage: 1 << 20, Window: 64 << 20, MaxStreams: 100, MaxHeaderList: 16 << 10, Handshake: time.Minute})
	one, other := connect(t, s.address), connect(t, s.address)
	least := time.Hour
	for range 20 {
		var ended []<-chan result
		for range calls {
			_, e := start(t, one, nil, []byte("large"))
			ended = append(ended, e)
		}
		<-all
		began := time.Now()
		_, e := start(t, other, nil, []byte("s"))
		got := <-e
		least = min(least, time.Since(began))
		require.NoError(t, got.err)
		got.Data.Free()
		for _, e := range ended {
			got := <-e
			require.NoError(t, got.err)
			require.Equal(t, size, got.Data.Len())
			got.Data.Free()
		}
	}
	t.Logf("the least delay of a small call is %v", least)
	require.Less(t, least, slower*time.Millisecond)
}
