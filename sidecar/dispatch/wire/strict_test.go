// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// behind is a client, and the inner server of its connection, which writes what a test says. The inner server has read the header fields of stream 1.
func behind(t *testing.T) (client, inner *raw) {
	s := wire.New(options(&echoes{}))
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		s.Stop()
		_ = s.Inner().Close()
		running.Wait()
	})
	accepted := make(chan net.Conn, 1)
	running.Go(func() {
		if conn, err := s.Inner().Accept(); err == nil {
			accepted <- conn
		}
	})
	client = (&served{address: l.Addr().String()}).raw(t)
	client.settings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	require.NoError(t, client.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: client.encode(otherFields), EndHeaders: true}))
	conn := <-accepted
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
	require.NoError(t, err)
	inner = &raw{Framer: http2.NewFramer(conn, conn), t: t, conn: conn}
	inner.hpack = hpack.NewEncoder(&inner.block)
	inner.until(func(f http2.Frame) bool { h, ok := f.(*http2.HeadersFrame); return ok && h.StreamID == 1 })
	return client, inner
}

// settings changes settings, and waits until the server has them.
func (r *raw) settings(s ...http2.Setting) {
	r.t.Helper()
	require.NoError(r.t, r.WriteSettings(s...))
	r.until(func(f http2.Frame) bool { a, ok := f.(*http2.SettingsFrame); return ok && a.IsAck() })
}

// received reads until the server has handled everything that was sent, and returns how many bytes of data have come meanwhile. No stream is reset.
func (r *raw) received() (n int) {
	r.t.Helper()
	require.NoError(r.t, r.WritePing(false, [8]byte{1}))
	r.until(func(f http2.Frame) bool {
		switch v := f.(type) {
		case *http2.DataFrame:
			n += len(v.Data())
		case *http2.RSTStreamFrame:
			r.t.Errorf("stream %d is reset: %v", v.StreamID, v.ErrCode)
		case *http2.GoAwayFrame:
			require.Equal(r.t, http2.ErrCodeNo, v.ErrCode)
		}
		p, ok := f.(*http2.PingFrame)
		return ok && p.IsAck()
	})
	return n
}

// A client that lowers its initial window is obeyed for streams of the inner server as for calls, also for what that server has sent already: their windows may be negative.
func TestLoweredWindowsHoldForStreamsOfTheInnerServer(t *testing.T) {
	r, inner := behind(t)
	require.Zero(t, r.received())
	inner.fields(1, false, [2]string{":status", "200"})
	for range 20 {
		require.NoError(t, inner.WriteData(1, false, make([]byte, 16<<10)))
	}
	require.Equal(t, 65535, r.received(), "the window of the connection")
	require.NoError(t, r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10_000}))
	require.NoError(t, r.WriteWindowUpdate(0, 1<<30))
	require.Zero(t, r.received(), "beyond the stream's window")
	require.NoError(t, r.WriteWindowUpdate(1, 65535-10_000))
	require.Zero(t, r.received(), "the window is 0 now")
	require.NoError(t, r.WriteWindowUpdate(1, 7))
	require.Equal(t, 7, r.received())
	require.NoError(t, r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10_100}))
	require.Equal(t, 100, r.received())
}

// Windows of streams of the inner server have their limits, too.
func TestWindowsOfInnerStreamsOverflow(t *testing.T) {
	r, _ := behind(t)
	require.NoError(t, r.WriteWindowUpdate(1, 1<<31-1-1<<20))
	require.Zero(t, r.received())
	require.NoError(t, r.WriteWindowUpdate(1, 1))
	r.resets(1, http2.ErrCodeFlowControl)
	r, _ = behind(t)
	require.NoError(t, r.WriteWindowUpdate(1, 1<<31-1-1<<20))
	require.NoError(t, r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<20 + 1}))
	r.goesAway(http2.ErrCodeFlowControl)
}

// Of several values of a setting in one frame the last one counts: no data leave in between.
func TestSettingsOfOneFrameTakeEffectTogether(t *testing.T) {
	r := serve(t, options(&echoes{})).raw(t)
	r.settings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	r.open(1)
	require.NoError(t, r.WriteData(1, true, framed(make([]byte, 1000))))
	require.Equal(t, 10, r.received())
	require.NoError(t, r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 500}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 20}))
	require.Equal(t, 10, r.received())
}

// A stream that both sides have ended gets no RST_STREAM, although it was answered while its last frame was handled.
func TestEndedStreamsAreNotReset(t *testing.T) {
	for name, end := range map[string]func(r *raw) error{
		"data":   func(r *raw) error { return r.WriteData(1, true, framed([]byte("x"))) },
		"padded": func(r *raw) error { return r.WriteDataPadded(1, true, framed([]byte("x")), make([]byte, 9)) },
		"nothing but padding": func(r *raw) error {
			if err := r.WriteData(1, false, framed(nil)[:4]); err != nil {
				return err
			}
			if err := r.WriteDataPadded(1, false, []byte{0}, make([]byte, 9)); err != nil {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, options(&echoes{})).raw(t)
			r.open(1)
			require.NoError(t, end(r))
			if name == "nothing but padding" { // an answer before the end of the request: it is reset without an error
				r.resets(1, http2.ErrCodeNo)
				require.NoError(t, r.WriteDataPadded(1, true, nil, make([]byte, 9)))
			}
			r.received()
		})
	}
}

// However many streams a client has begun above the last of GOAWAY, nothing of them is answered, and the others go on.
func TestManyStreamsAfterGoAwayAreIgnored(t *testing.T) {
	s, begun, answer := holding(t)
	r := s.raw(t)
	r.open(1)
	require.NoError(t, r.WriteData(1, true, framed([]byte("x"))))
	<-begun
	stopped := r.drained(s, 1)
	const last = 201
	for id := uint32(3); id <= last; id += 2 {
		r.open(id)
	}
	for id := uint32(3); id <= last; id += 2 {
		require.NoError(t, r.WriteData(id, false, framed([]byte("y"))))
		r.fields(id, true, [2]string{"x-trailer", "1"})
		require.NoError(t, r.WriteWindowUpdate(id, 0))
	}
	require.Zero(t, r.received())
	answer()
	r.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.HeadersFrame)
		return ok && h.StreamID == 1 && h.StreamEnded()
	})
	_ = r.conn.Close()
	<-stopped
}

// An answer's header fields that are beyond what the client has said it takes are not sent: some clients end the connection for them. The status arrives without its text.
func TestTheClientsLimitOfHeaderFields(t *testing.T) {
	long := strings.Repeat("x", 9000)
	s := serve(t, options(&echoes{
		begin: func(c *wire.Call) error {
			if md, _ := metadata.FromIncomingContext(c.Context()); md["refuse"] != nil {
				return status.Error(codes.Unavailable, long)
			}
			return nil
		},
		serve: func(c *wire.Call, m mem.BufferSlice) {
			_ = c.SetHeader(metadata.Pairs("x-long", long))
			c.Reply(c.Turn(), m)
			c.Done()
		},
	}))
	for name, code := range map[string]codes.Code{"refuse": codes.Unavailable, "x-other": codes.Internal} {
		t.Run(name, func(t *testing.T) {
			r := s.raw(t)
			r.settings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 8 << 10})
			r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			r.open(1, [2]string{name, "1"})
			require.NoError(t, r.WriteData(1, true, framed([]byte("x"))))
			r.until(func(f http2.Frame) bool {
				m, ok := f.(*http2.MetaHeadersFrame)
				if !ok {
					return false
				}
				size := uint32(0)
				for _, f := range m.Fields {
					size += f.Size()
					if f.Name == "grpc-status" {
						require.Equal(t, code.String(), codeName(f.Value))
					}
				}
				require.LessOrEqual(t, size, uint32(8<<10))
				require.True(t, m.StreamEnded())
				return true
			})
		})
	}
}

// A server that breaks HTTP/2 loses the connection, and its calls end.
func TestWrongServers(t *testing.T) {
	for name, send := range map[string]func(*raw){
		"settings of a stream":                func(r *raw) { _ = r.WriteRawFrame(http2.FrameSettings, 0, 1, nil) },
		"an acknowledgement with settings":    func(r *raw) { _ = r.WriteRawFrame(http2.FrameSettings, http2.FlagSettingsAck, 0, make([]byte, 6)) },
		"a server that lets itself be pushed": func(r *raw) { _ = r.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1}) },
		"a ping of a stream":                  func(r *raw) { _ = r.WriteRawFrame(http2.FramePing, 0, 1, make([]byte, 8)) },
		"a GOAWAY of a stream":                func(r *raw) { _ = r.WriteRawFrame(http2.FrameGoAway, 0, 1, []byte{0, 0, 0, 1, 0, 0, 0, 0}) },
		"a GOAWAY with a stream of its own":   func(r *raw) { _ = r.WriteGoAway(2, http2.ErrCodeNo, nil) },
		"a GOAWAY that goes up": func(r *raw) {
			_ = r.WriteGoAway(1, http2.ErrCodeNo, nil)
			_ = r.WriteGoAway(3, http2.ErrCodeNo, nil)
		},
		"a reset of no stream":            func(r *raw) { _ = r.WriteRawFrame(http2.FrameRSTStream, 0, 0, make([]byte, 4)) },
		"a reset of a stream not begun":   func(r *raw) { _ = r.WriteRSTStream(7, http2.ErrCodeCancel) },
		"header fields of no stream":      func(r *raw) { _ = r.WriteRawFrame(http2.FrameHeaders, 0, 0, nil) },
		"fields of a stream not begun":    func(r *raw) { r.fields(7, false, [2]string{":status", "200"}) },
		"a window of a stream not begun":  func(r *raw) { _ = r.WriteWindowUpdate(7, 1) },
		"no window for the connection":    func(r *raw) { _ = r.WriteWindowUpdate(0, 0) },
		"a priority of no stream":         func(r *raw) { _ = r.WriteRawFrame(http2.FramePriority, 0, 0, make([]byte, 5)) },
		"data beyond the connection's":    func(r *raw) { r.fields(1, false, [2]string{":status", "200"}); _ = r.WriteData(9, false, nil) },
		"a connection's window of 4 GiB":  func(r *raw) { _ = r.WriteWindowUpdate(0, 1<<31-1) },
		"a window of a call beyond 2 GiB": func(r *raw) { _ = r.WriteWindowUpdate(1, 1<<31-1) },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := against(t, nil)
			s.AllowIllegalWrites = true
			_, ended := start(t, c, nil, []byte("x"))
			s.until(func(f http2.Frame) bool { d, ok := f.(*http2.DataFrame); return ok && d.StreamEnded() })
			send(s)
			select {
			case got := <-ended:
				require.ErrorIs(t, got.err, wire.ErrLost)
			case <-time.After(30 * time.Second):
				t.Fatal("the call goes on")
			}
			<-c.Done()
		})
	}
	t.Run("no settings", func(t *testing.T) {
		c, _ := connectedTo(t, wire.ClientOptions{Authority: "a", Window: 4 << 20, MaxMessage: 1 << 20}, func(r *raw) error { return r.WritePing(false, [8]byte{}) })
		select {
		case <-c.Done():
		case <-time.After(30 * time.Second):
			t.Fatal("the connection goes on")
		}
	})
}

// Header fields of an answer that are none end their call, and reach nobody.
func TestWrongAnswers(t *testing.T) {
	for name, fields := range map[string][][2]string{
		"upper case":          {{":status", "200"}, {"X-Upper", "1"}},
		"a value with a line": {{":status", "200"}, {"x", "a\r\nb"}},
		"a request's field":   {{":status", "200"}, {":path", "/"}},
		"two statuses":        {{":status", "200"}, {":status", "200"}},
		"a late status":       {{"x", "1"}, {":status", "200"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := against(t, nil)
			_, ended := start(t, c, nil, []byte("x"))
			s.fields(1, false, fields...)
			require.Equal(t, codes.Internal, status.Code((<-ended).err))
			s.resets(1, http2.ErrCodeProtocol)
			answersStill(t, c, s)
		})
	}
}
