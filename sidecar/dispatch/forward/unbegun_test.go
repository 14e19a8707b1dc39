// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// choosy is a server that answers calls with empty messages, but for those that it does not begin.
type choosy struct {
	// begins reports whether it begins a call of such a client; else unbegun says so.
	begins  func(client string) bool
	unbegun func(f *http2.Framer, id uint32) error
	refused atomic.Int32
}

// connect serves the server's connections, and returns a Conn to it.
func (s *choosy) connect(t *testing.T) *forward.Conn {
	c, err := forward.Dial(accepting(t, func(conn net.Conn) { _ = s.serve(conn) }), forward.Options{}) // each to its end
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func (s *choosy) serve(conn net.Conn) error {
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	f := http2.NewFramer(conn, conn)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fields := func(id uint32, end bool, name, value string) error {
		block.Reset()
		err := encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
		if err == nil && !end {
			err = encoder.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
		}
		if err == nil {
			err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
		}
		return err
	}
	begun := map[uint32]bool{}
	err := f.WriteSettings()
	for err == nil {
		var frame http2.Frame
		if frame, err = f.ReadFrame(); err != nil {
			break
		}
		switch v := frame.(type) {
		case *http2.SettingsFrame:
			if !v.IsAck() {
				err = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !v.IsAck() {
				err = f.WritePing(true, v.Data)
			}
		case *http2.MetaHeadersFrame:
			client := ""
			for _, field := range v.Fields {
				if field.Name == "user-agent" {
					client = field.Value
				}
			}
			if begun[v.StreamID] = s.begins(client); !begun[v.StreamID] {
				s.refused.Add(1)
				err = s.unbegun(f, v.StreamID)
			}
		case *http2.DataFrame:
			if v.Length > 0 {
				err = f.WriteWindowUpdate(0, v.Length)
			}
			if err == nil && v.StreamEnded() && begun[v.StreamID] {
				err = fields(v.StreamID, false, ":status", "200")
				if err == nil {
					err = f.WriteData(v.StreamID, false, make([]byte, 5))
				}
				if err == nil {
					err = fields(v.StreamID, true, "grpc-status", "0")
				}
			}
		}
	}
	return err
}

// Ways to say that a call was not begun.
var unbegun = map[string]func(*http2.Framer, uint32) error{
	"refused":  func(f *http2.Framer, id uint32) error { return f.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
	"draining": func(f *http2.Framer, _ uint32) error { return f.WriteGoAway(0, http2.ErrCodeNo, nil) },
}

// TestACallThatTheServerHasNotBegunIsNoLoss: it is made on another connection.
func TestACallThatTheServerHasNotBegunIsNoLoss(t *testing.T) {
	for name, how := range unbegun {
		t.Run(name, func(t *testing.T) {
			s := &choosy{begins: func(client string) bool { return strings.HasPrefix(client, "grpc-go") }, unbegun: how}
			c := s.connect(t)
			p := &counted{}
			for n := 0; s.refused.Load() == 0; n++ { // the first ones may come before the connection of package wire
				require.Less(t, n, 100_000)
				a, err := call(t.Context(), c, &batch.Frame{Data: mem.BufferSlice{mem.NewBuffer(p.Get(5000), p)}})
				require.NoError(t, err)
				a.Frame.Data.Free()
			}
			require.NoError(t, c.Close()) // what it has written goes back
			require.Zero(t, p.out.Load())
		})
	}
}

// TestAServerThatBeginsNothingIsNotAskedForEver.
func TestAServerThatBeginsNothingIsNotAskedForEver(t *testing.T) {
	for name, how := range unbegun {
		t.Run(name, func(t *testing.T) {
			s := &choosy{begins: func(string) bool { return false }, unbegun: how}
			c := s.connect(t)
			for range 20 {
				before := s.refused.Load()
				_, err := call(t.Context(), c, frame(t, ""))
				require.True(t, forward.Lost(err), "%v", err)
				require.LessOrEqual(t, s.refused.Load()-before, int32(3))
			}
		})
	}
}
