// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// What a client's request has had sent to others leaves, whatever comes behind that request in the same read: a frame that ends the connection, or data that
// the inner server does not take.
func TestTurnLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*raw)
		behind func(*http2.Framer) error
	}{
		"before the connection fails": {
			func(*raw) {},
			func(f *http2.Framer) error { return f.WriteRawFrame(http2.FramePing, 0, 0, []byte("short")) },
		},
		"before the inner server is waited for": {
			func(r *raw) {
				fields := append([][2]string{}, plainFields...)
				fields[2][1] = other
				require.NoError(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(fields), EndHeaders: true}))
				for range 64 {
					require.NoError(t, r.WriteData(1, false, make([]byte, 16000)))
				}
			},
			func(f *http2.Framer) error {
				for range 3 {
					if err := f.WriteData(1, false, make([]byte, 16000)); err != nil {
						return err
					}
				}
				return nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			waiting := make(chan *wire.Call, 1)
			s := wire.New(options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
				text := string(m.Materialize())
				m.Free()
				if text == "wait" {
					waiting <- c
					return
				}
				patient := <-waiting
				patient.Reply(c.Turn(), mem.BufferSlice{mem.SliceBuffer("answer")})
				patient.Done()
				c.Reply(c.Turn(), mem.BufferSlice{mem.SliceBuffer("answer")})
				c.Done()
			}}))
			l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var running sync.WaitGroup
			running.Go(func() { _ = s.Serve(l) })
			running.Go(func() { // an inner server that reads nothing
				for conn, err := s.Inner().Accept(); err == nil; conn, err = s.Inner().Accept() {
					defer func() { _ = conn.Close() }()
				}
			})
			defer running.Wait()
			defer s.Stop()
			defer func() { _ = s.Inner().Close() }()
			clients := &served{address: l.Addr().String()}

			patient := clients.raw(t)
			patient.open(1)
			require.NoError(t, patient.WriteData(1, true, framed([]byte("wait"))))
			require.Eventually(t, func() bool { return len(waiting) == 1 }, 30*time.Second, time.Millisecond)

			hasty := clients.raw(t)
			c.before(hasty)
			time.Sleep(50 * time.Millisecond) // until it has been read: what follows comes in one read
			var sent bytes.Buffer
			frames := http2.NewFramer(&sent, nil)
			frames.AllowIllegalWrites = true
			require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: hasty.encode(plainFields), EndHeaders: true}))
			require.NoError(t, frames.WriteData(3, true, framed([]byte("answer the other"))))
			require.NoError(t, c.behind(frames))
			_, err = hasty.conn.Write(sent.Bytes())
			require.NoError(t, err)

			require.NoError(t, patient.conn.SetReadDeadline(time.Now().Add(30*time.Second)))
			patient.until(func(f http2.Frame) bool {
				h, ok := f.(*http2.HeadersFrame)
				return ok && h.StreamEnded()
			})
		})
	}
}

// What a client's request has had sent to others does not wait for what is expensive behind it: header fields that are many times larger than they came.
func TestExpensiveHeadersDelayNobody(t *testing.T) {
	const calls = 1500
	waiting, answered := make(chan *wire.Call, 1), make(chan struct{})
	var begun atomic.Int64
	o := options(&echoes{
		begin: func(*wire.Call) error {
			if begun.Add(1) == calls*3/4 {
				select {
				case <-answered:
				case <-time.After(20 * time.Second):
					t.Error("the other's answer waits for the end of the turn")
				}
			}
			return nil
		},
		serve: func(c *wire.Call, m mem.BufferSlice) {
			text := string(m.Materialize())
			m.Free()
			if text == "wait" {
				waiting <- c
				return
			}
			patient := <-waiting
			patient.Reply(c.Turn(), mem.BufferSlice{mem.SliceBuffer("answer")})
			patient.Done()
			c.Reply(c.Turn(), mem.BufferSlice{mem.SliceBuffer("answer")})
			c.Done()
		},
	})
	o.MaxStreams = 10 * calls
	s := serve(t, o)
	patient := s.raw(t)
	patient.open(1)
	require.NoError(t, patient.WriteData(1, true, framed([]byte("wait"))))
	require.Eventually(t, func() bool { return len(waiting) == 1 }, 30*time.Second, time.Millisecond)

	hasty := s.raw(t)
	large := append(append([][2]string{}, plainFields...), [2]string{"x-a", strings.Repeat("x", 3500)})
	require.NoError(t, hasty.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: hasty.encode(large), EndHeaders: true}))
	time.Sleep(50 * time.Millisecond) // until it has been read: what follows comes in one read
	var sent bytes.Buffer
	frames := http2.NewFramer(&sent, nil)
	require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: hasty.encode(plainFields), EndHeaders: true}))
	require.NoError(t, frames.WriteData(3, true, framed([]byte("answer the other"))))
	for i := range uint32(calls) {
		block := hasty.encode(append(large[:len(large):len(large)], large[len(large)-1], large[len(large)-1]))
		require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 5, BlockFragment: block, EndHeaders: true}))
	}
	_, err := hasty.conn.Write(sent.Bytes())
	require.NoError(t, err)
	patient.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.HeadersFrame)
		return ok && h.StreamEnded()
	})
	close(answered)
	require.Eventually(t, func() bool { return begun.Load() == calls+3 }, 30*time.Second, time.Millisecond)
}
