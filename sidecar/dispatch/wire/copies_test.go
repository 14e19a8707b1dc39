// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"net"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// memory is a place in memory.
type memory struct{ from, to uintptr }

func placeOf(b []byte) memory {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return memory{at, at + uintptr(len(b))}
}

func (m memory) holds(b []byte) bool {
	p := placeOf(b)
	return m.from <= p.from && p.to <= m.to
}

// watched is a connection that notes from where it is written and to where it is read.
type watched struct {
	net.Conn
	socket *wire.Socket

	mu      sync.Mutex
	payload memory
	from    int // bytes that were written from the payload
	others  int // from elsewhere
	read    []memory
}

func (c *watched) Gathers() bool { return true }

func (c *watched) TryWrite(pieces [][]byte) (int, error) {
	n, err := c.socket.TryWrite(pieces)
	c.wrote(pieces, n)
	return n, err
}

func (c *watched) AwaitWrite(pieces [][]byte) (int, error) {
	n, err := c.socket.AwaitWrite(pieces)
	c.wrote(pieces, n)
	return n, err
}

func (c *watched) wrote(pieces [][]byte, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pieces {
		took := min(n, len(p))
		n -= took
		if c.payload.holds(p) {
			c.from += took
		} else {
			c.others += took
		}
	}
}

func (c *watched) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = append(c.read, placeOf(p[:max(0, n)]))
	return n, err
}

// TestCopiesOfAPayload: a large request is written to the socket from where the caller has it, and a large answer stays where it was read, but for the small parts
// at the ends of reads. So the payload of a request to a server without shared memory is copied by the kernel only. What reads bring at once is the kernel's affair: the
// least of several rounds is judged.
func TestCopiesOfAPayload(t *testing.T) {
	const size = 600 << 10
	s := serve(t, options(&echoes{}))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	require.NoError(t, err)
	w := &watched{Conn: conn, socket: wire.NewSocket(conn)}
	c := wire.NewClient(w, wire.ClientOptions{Authority: s.address, UserAgent: "test", Window: 4 << 20, MaxMessage: 64 << 20})
	t.Cleanup(c.Close)
	least := 1.
	for range 20 {
		payload := random(size)
		w.mu.Lock()
		w.payload, w.from, w.others, w.read = placeOf(payload), 0, 0, nil
		w.mu.Unlock()
		ended := make(chan result, 1)
		_, err := c.Start(nil, echo, nil, mem.BufferSlice{mem.SliceBuffer(payload)}, func(_ *wire.Turn, a wire.Answer, err error) { ended <- result{a, err} })
		require.NoError(t, err)
		got := <-ended
		require.NoError(t, got.err)
		require.Equal(t, payload, got.Data.Materialize())
		// What was written is noted a little later.
		require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.from+w.others >= size }, 30*time.Second, time.Millisecond)
		w.mu.Lock()
		require.GreaterOrEqual(t, w.from, size-size/100, "but for parts of 512 bytes at most")
		require.Less(t, w.others, size/100, "heads of frames, and such parts")
		copied := 0
		for _, b := range got.Data {
			if !inOne(w.read, b.ReadOnlyData()) {
				copied += b.Len()
			}
		}
		w.mu.Unlock()
		least = min(least, float64(copied)/size)
		got.Data.Free()
	}
	t.Logf("of an answer, %.2f is copied", least)
	require.Less(t, least, .15)
}

func inOne(all []memory, b []byte) bool {
	for _, m := range all {
		if m.holds(b) {
			return true
		}
	}
	return false
}
