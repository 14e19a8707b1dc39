// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
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

// raw is a client that sends what a test says.
type raw struct {
	*http2.Framer
	t     testing.TB
	conn  net.Conn
	block bytes.Buffer
	hpack *hpack.Encoder
}

func (s *served) raw(t testing.TB) *raw {
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	require.NoError(t, err)
	return rawOn(t, conn)
}

// rawOn is raw on a connection.
func rawOn(t testing.TB, conn net.Conn) *raw {
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	r := &raw{Framer: http2.NewFramer(conn, conn), t: t, conn: conn}
	r.AllowIllegalWrites = true
	r.hpack = hpack.NewEncoder(&r.block)
	_, err := io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, r.WriteSettings())
	return r
}

var plainFields = [][2]string{
	{":method", "POST"}, {":scheme", "http"}, {":path", echo}, {":authority", "a"}, {"content-type", "application/grpc"}, {"te", "trailers"},
}

// encode makes a block of header fields.
func (r *raw) encode(fields [][2]string) []byte {
	r.block.Reset()
	for _, f := range fields {
		require.NoError(r.t, r.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	return append([]byte(nil), r.block.Bytes()...)
}

// open begins a call.
func (r *raw) open(id uint32, more ...[2]string) {
	fields := append(append([][2]string{}, plainFields...), more...)
	_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(fields), EndHeaders: true}) // the connection may have ended
}

// framed is a gRPC message.
func framed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// until reads frames until wanted is true, and fails if the connection ends before.
func (r *raw) until(wanted func(http2.Frame) bool) {
	r.t.Helper()
	for {
		f, err := r.ReadFrame()
		require.NoError(r.t, err)
		if wanted(f) {
			return
		}
	}
}

// goesAway requires that the connection ends with a code.
func (r *raw) goesAway(code http2.ErrCode) {
	r.t.Helper()
	seen := http2.ErrCode(1 << 20)
	for {
		f, err := r.ReadFrame()
		if g, ok := f.(*http2.GoAwayFrame); ok && err == nil {
			seen = g.ErrCode
		}
		if err != nil {
			var timeout net.Error
			require.False(r.t, errors.As(err, &timeout) && timeout.Timeout(), "the connection is still open")
			break
		}
	}
	require.Equal(r.t, code, seen)
}

// resets requires that a stream is reset with a code.
func (r *raw) resets(id uint32, code http2.ErrCode) {
	r.t.Helper()
	r.until(func(f http2.Frame) bool {
		v, ok := f.(*http2.RSTStreamFrame)
		if ok && v.StreamID == id {
			require.Equal(r.t, code, v.ErrCode)
		}
		return ok && v.StreamID == id
	})
}

// answers requires the answer of a call that is still to be made on the connection.
func (r *raw) answers(id uint32) {
	r.t.Helper()
	r.open(id)
	require.NoError(r.t, r.WriteData(id, true, framed([]byte("x"))))
	r.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.HeadersFrame)
		return ok && h.StreamID == id && h.StreamEnded()
	})
}

// What is wrong about one stream ends that one only.
func TestWrongStreams(t *testing.T) {
	for name, c := range map[string]struct {
		fields [][2]string
		code   http2.ErrCode
	}{
		"upper case":              {append(plainFields[:len(plainFields):len(plainFields)], [2]string{"X-Upper", "1"}), http2.ErrCodeProtocol},
		"connection":              {append(plainFields[:len(plainFields):len(plainFields)], [2]string{"connection", "close"}), http2.ErrCodeProtocol},
		"upgrade":                 {append(plainFields[:len(plainFields):len(plainFields)], [2]string{"upgrade", "h2c"}), http2.ErrCodeProtocol},
		"te":                      {append(plainFields[:len(plainFields):len(plainFields)], [2]string{"te", "gzip"}), http2.ErrCodeProtocol},
		"a value with a line":     {append(plainFields[:len(plainFields):len(plainFields)], [2]string{"x", "a\r\nb"}), http2.ErrCodeProtocol},
		"an unknown pseudo field": {append([][2]string{{":other", "1"}}, plainFields...), http2.ErrCodeProtocol},
		"a late pseudo field":     {append(plainFields[:len(plainFields):len(plainFields)], [2]string{":authority", "b"}), http2.ErrCodeProtocol},
		"two paths":               {append([][2]string{{":path", echo}}, plainFields...), http2.ErrCodeProtocol},
		"no path":                 {plainFields[:2], http2.ErrCodeProtocol},
		"an answer's field":       {append([][2]string{{":status", "200"}}, plainFields...), http2.ErrCodeProtocol},
		"a list beyond its limit": {append(plainFields[:len(plainFields):len(plainFields)], [2]string{"x", strings.Repeat("x", 9000)}, [2]string{"y", strings.Repeat("y", 9000)}), http2.ErrCodeFrameSize},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, options(&echoes{}))
			r := s.raw(t)
			block := r.encode(c.fields)
			n := min(len(block), 16<<10)
			require.NoError(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:n], EndHeaders: n == len(block)}))
			if n < len(block) {
				require.NoError(t, r.WriteContinuation(1, true, block[n:]))
			}
			r.resets(1, c.code)
			r.answers(3)
		})
	}
	t.Run("data beyond the stream's window", func(t *testing.T) {
		o := options(&echoes{})
		o.Window = 64 << 10
		r := serve(t, o).raw(t)
		r.open(1)
		require.NoError(t, r.WriteData(1, false, []byte{0, 0, 0}))
		for range 5 {
			require.NoError(t, r.WriteData(1, false, nil))
		}
		require.NoError(t, r.WriteData(1, false, []byte{0, 16})) // 16 bytes, and then more
		for range 5 {
			_ = r.WriteData(1, false, make([]byte, 16<<10))
		}
		r.until(func(f http2.Frame) bool { // what is too much is no part of the call, which has its answer
			v, ok := f.(*http2.RSTStreamFrame)
			return ok && v.StreamID == 1
		})
		r.answers(3)
	})
	t.Run("windows beyond their limit", func(t *testing.T) {
		hold := make(chan struct{})
		s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
			if string(m.Materialize()) == "x" {
				c.Reply(nil, m)
				c.Done()
				return
			}
			m.Free()
			go func() { <-hold; c.Done() }()
		}}))
		defer close(hold)
		r := s.raw(t)
		r.open(1)
		require.NoError(t, r.WriteData(1, false, framed(nil)))
		require.NoError(t, r.WriteWindowUpdate(1, 1<<31-1))
		r.resets(1, http2.ErrCodeFlowControl)
		r.open(3)
		require.NoError(t, r.WriteWindowUpdate(3, 0))
		r.resets(3, http2.ErrCodeProtocol)
		r.answers(5)
	})
	t.Run("more streams than are allowed", func(t *testing.T) {
		s := serve(t, options(&echoes{}))
		r := s.raw(t)
		for i := range uint32(101) {
			r.open(2*i + 1)
		}
		r.resets(201, http2.ErrCodeRefusedStream)
	})
}

// What is wrong about a connection ends it, with the reason.
func TestWrongConnections(t *testing.T) {
	one := func(r *raw) { r.open(1); _ = r.WriteData(1, false, []byte{0}) }
	for name, c := range map[string]struct {
		code http2.ErrCode
		send func(*raw)
	}{
		"a stream that goes back":        {http2.ErrCodeProtocol, func(r *raw) { r.answers(5); r.open(3) }},
		"a stream of the server's":       {http2.ErrCodeProtocol, func(r *raw) { r.open(2) }},
		"data of a stream not begun":     {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteData(7, true, nil) }},
		"a reset of a stream not begun":  {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteRSTStream(7, 0) }},
		"a window of a stream not begun": {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteWindowUpdate(7, 1) }},
		"no window for the connection":   {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteWindowUpdate(0, 0) }},
		"a connection's window of 4 GiB": {http2.ErrCodeFlowControl, func(r *raw) { _ = r.WriteWindowUpdate(0, 1<<31-1) }},
		"an initial window of 2 GiB":     {http2.ErrCodeFlowControl, func(r *raw) { _ = r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}) }},
		"an initial window that overflows": {http2.ErrCodeFlowControl, func(r *raw) {
			one(r)
			_ = r.WriteWindowUpdate(1, 1<<31-1-65535)
			_ = r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65536})
		}},
		"frames of 1 KiB at most":           {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 10}) }},
		"a push that is neither on nor off": {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2}) }},
		"settings of a stream":              {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteRawFrame(http2.FrameSettings, 0, 1, nil) }},
		"half a setting":                    {http2.ErrCodeFrameSize, func(r *raw) { _ = r.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 3)) }},
		"a frame that is too long":          {http2.ErrCodeFrameSize, func(r *raw) { _ = r.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 16<<10+1)) }},
		"padding longer than its frame":     {http2.ErrCodeProtocol, func(r *raw) { r.open(1); _ = r.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1}) }},
		"a frame within header fields": {http2.ErrCodeProtocol, func(r *raw) {
			_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(plainFields)})
			_ = r.WritePing(false, [8]byte{})
		}},
		"a continuation of nothing": {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteContinuation(1, true, nil) }},
		"header fields that are none": {http2.ErrCodeCompression, func(r *raw) {
			_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}},
		"a push": {http2.ErrCodeProtocol, func(r *raw) { _ = r.WriteRawFrame(http2.FramePushPromise, 0, 1, make([]byte, 4)) }},
		"header fields without end": {http2.ErrCodeEnhanceYourCalm, func(r *raw) {
			_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(plainFields)})
			for range 200 {
				_ = r.WriteContinuation(1, false, nil)
			}
		}},
		"frames of no data without end": {http2.ErrCodeEnhanceYourCalm, func(r *raw) {
			r.open(1)
			for range 1100 {
				_ = r.WriteData(1, false, nil)
			}
		}},
		"pings without end": {http2.ErrCodeEnhanceYourCalm, func(r *raw) {
			for range 20 {
				_ = r.WritePing(false, [8]byte{})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, options(&echoes{}))
			r := s.raw(t)
			c.send(r)
			r.goesAway(c.code)
			s.raw(t).answers(1)
		})
	}
}

// Calls that are reset faster than their handlers end, end the connection, and every handler hears of its call's end.
func TestRapidReset(t *testing.T) {
	var begun, ended atomic.Int64
	release := make(chan struct{})
	s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		m.Free()
		begun.Add(1)
		go func() {
			<-c.Context().Done()
			ended.Add(1)
			<-release // it does not end with its context
			c.Done()
		}()
	}}))
	t.Cleanup(func() { close(release) })
	r := s.raw(t)
	go func() {
		for i := range uint32(1000) {
			r.open(2*i + 1)
			_ = r.WriteData(2*i+1, true, framed(nil))
			if r.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}()
	r.goesAway(http2.ErrCodeEnhanceYourCalm)
	require.Eventually(t, func() bool { return begun.Load() == ended.Load() }, 30*time.Second, time.Millisecond)
	require.LessOrEqual(t, begun.Load(), int64(100))
}

// Who sends and does not read is not read from, and holds up nobody.
func TestAClientThatDoesNotRead(t *testing.T) {
	o := options(&echoes{})
	o.PingInterval = 0
	s := serve(t, o)
	r := s.raw(t)
	require.NoError(t, r.conn.(*net.TCPConn).SetReadBuffer(4<<10))
	many := bytes.Repeat([]byte{0, 0, 0, byte(http2.FrameSettings), 0, 0, 0, 0, 0}, 10_000)
	var err error
	sent := 0
	for i := 0; i < 2000 && err == nil; i++ {
		require.NoError(t, r.conn.SetWriteDeadline(time.Now().Add(2*time.Second)))
		_, err = r.conn.Write(many)
		sent += len(many)
	}
	require.Error(t, err, "%d bytes of settings were taken", sent)
	s.raw(t).answers(1)
}

// Answers that a client does not take wait without a goroutine of anybody else's, and are freed with the connection.
func TestSlowReader(t *testing.T) {
	pool := &counting{}
	o := options(&echoes{})
	o.Pool = pool
	s := serve(t, o)
	r := s.raw(t)
	require.NoError(t, r.WriteWindowUpdate(0, 1<<30))
	for i := range uint32(8) {
		id := 2*i + 1
		r.open(id)
		require.NoError(t, r.WriteWindowUpdate(id, 1<<30))
		message := framed(make([]byte, 1<<20))
		for len(message) > 0 {
			n := min(len(message), 16<<10)
			require.NoError(t, r.WriteData(id, n == len(message), message[:n]))
			message = message[n:]
		}
	}
	s.raw(t).answers(1)
	require.NoError(t, r.conn.Close())
	require.Eventually(t, func() bool { return pool.out.Load() < 1<<20 }, 30*time.Second, time.Millisecond, "the answers are freed")
}

// counting counts the bytes that were taken and not put back.
type counting struct{ out atomic.Int64 }

func (c *counting) Get(n int) *[]byte {
	b := make([]byte, n)
	c.count(&b, 1)
	return &b
}

func (c *counting) Put(b *[]byte) { c.count(b, -1) }

// count counts no small buffers, which grpc's mem does not put back.
func (c *counting) count(b *[]byte, sign int64) {
	if n := cap(*b); !mem.IsBelowBufferPoolingThreshold(n) {
		c.out.Add(sign * int64(n))
	}
}

// Who announces messages and does not send them does not get the memory for them.
func TestAnnouncedMessages(t *testing.T) {
	pool := &counting{}
	o := options(&echoes{})
	o.Pool = pool
	s := serve(t, o)
	r := s.raw(t)
	for i := range uint32(100) {
		r.open(2*i + 1)
		require.NoError(t, r.WriteData(2*i+1, false, append([]byte{0, 2, 0, 0, 0}, make([]byte, 9<<10)...)))
	}
	require.NoError(t, r.WritePing(false, [8]byte{1}))
	r.until(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
	require.Less(t, pool.out.Load(), int64(8<<20), "of 3.2 GB that were announced")
	require.NoError(t, r.conn.Close())
	require.Eventually(t, func() bool { return pool.out.Load() == 0 }, 30*time.Second, time.Millisecond)
}

// Messages that are no message, and calls that end before theirs is whole.
func TestMessagesThatAreNone(t *testing.T) {
	h := &echoes{}
	o := options(h)
	o.MaxMessage = 100
	s := serve(t, o)
	for name, c := range map[string]struct {
		send []byte
		code codes.Code
	}{
		"nothing":              {nil, codes.Internal},
		"half of a prefix":     {[]byte{0, 0}, codes.Internal},
		"half of a message":    {framed([]byte("abc"))[:6], codes.Internal},
		"compressed":           {[]byte{1, 0, 0, 0, 0}, codes.Internal},
		"neither":              {[]byte{7, 0, 0, 0, 0}, codes.Internal},
		"longer than may come": {framed(make([]byte, 101)), codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.raw(t)
			r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			before := len(h.losses())
			r.open(1)
			require.NoError(t, r.WriteData(1, true, c.send))
			r.until(func(f http2.Frame) bool {
				m, ok := f.(*http2.MetaHeadersFrame)
				if !ok || !m.StreamEnded() {
					return false
				}
				for _, f := range m.RegularFields() {
					if f.Name == "grpc-status" {
						require.Equal(t, c.code.String(), codeName(f.Value))
					}
				}
				return true
			})
			require.Eventually(t, func() bool { return len(h.losses()) == before+1 }, 30*time.Second, time.Millisecond)
		})
	}
}

func codeName(s string) string {
	var c codes.Code
	_ = c.UnmarshalJSON([]byte(s))
	return c.String()
}

// A call that its handler refuses is answered, and its message ignored.
func TestRefusedCalls(t *testing.T) {
	s := serve(t, options(&echoes{begin: func(c *wire.Call) error {
		if md, _ := metadata.FromIncomingContext(c.Context()); md["refuse"] != nil {
			return status.Error(codes.Unavailable, "there is no room")
		}
		return nil
	}}))
	conn := s.dial(t)
	_, err := call(metadata.AppendToOutgoingContext(t.Context(), "refuse", "1"), conn, echo, random(1<<20))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, "there is no room", status.Convert(err).Message())
	_, err = call(t.Context(), conn, echo, random(1<<20))
	require.NoError(t, err)
}

// What comes before the preface, or in its place, begins nothing.
func TestWrongPreface(t *testing.T) {
	s := serve(t, options(&echoes{}))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = io.Copy(io.Discard, conn)
	require.NoError(t, err, "it is closed")
}
