// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"context"
	"net"
	"sync"
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
