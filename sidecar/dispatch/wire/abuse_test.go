// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// seen is what a frame says to who sends data.
type seen struct {
	stream, window uint32
	ended          bool
}

// watch reads frames in the background.
func (r *raw) watch() <-chan seen {
	all := make(chan seen, 100_000)
	go func() {
		defer close(all)
		for {
			f, err := r.ReadFrame()
			if err != nil {
				return
			}
			s := seen{stream: f.Header().StreamID}
			switch v := f.(type) {
			case *http2.WindowUpdateFrame:
				s.window = v.Increment
			case *http2.HeadersFrame:
				s.ended = v.StreamEnded()
			default:
				continue
			}
			all <- s
		}
	}()
	return all
}

// sendPadded sends a message in frames of which a fifth is padding, as far as the windows allow, of which the stream's begins so large.
func (r *raw) sendPadded(id uint32, stream int64, message []byte, ends bool, all <-chan seen) {
	r.t.Helper()
	connection := int64(65535)
	for len(message) > 0 {
		n := min(len(message), 1000)
		for need := int64(n + 256); stream < need || connection < need; {
			select {
			case s, ok := <-all:
				require.True(r.t, ok, "the connection has ended")
				if s.stream == 0 {
					connection += int64(s.window)
				} else if s.stream == id {
					stream += int64(s.window)
				}
			case <-time.After(20 * time.Second):
				r.t.Fatalf("%d bytes are left, and the windows stay at %d and %d", len(message), stream, connection)
			}
		}
		require.NoError(r.t, r.WriteDataPadded(id, ends && n == len(message), message[:n], make([]byte, 255)))
		stream, connection = stream-int64(n+256), connection-int64(n+256)
		message = message[n:]
	}
}

// Padding counts in the windows and is no part of a message. It is given back, or who pads would wait for ever.
func TestPaddedMessages(t *testing.T) {
	const window = 64 << 10
	for name, fields := range map[string][][2]string{"calls": plainFields, "streams of the inner server": otherFields} {
		t.Run(name, func(t *testing.T) {
			o := options(&echoes{})
			o.Window = window
			r := serve(t, o).raw(t)
			require.NoError(t, r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
			require.NoError(t, r.WriteWindowUpdate(0, 1<<30))
			require.NoError(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(fields), EndHeaders: true}))
			all := r.watch()
			r.sendPadded(1, window, framed(make([]byte, 400<<10)), true, all)
			for s := range all {
				if s.ended {
					return
				}
			}
			t.Fatal("there is no answer")
		})
	}
	t.Run("answers", func(t *testing.T) {
		c, s := againstWith(t, wire.ClientOptions{Authority: "a", Window: window, MaxMessage: 1 << 20})
		_, ended := start(t, c, nil, []byte("x"))
		s.fields(1, false, [2]string{":status", "200"})
		s.sendPadded(1, window, framed(make([]byte, 400<<10)), false, s.watch())
		s.fields(1, true, [2]string{"grpc-status", "0"})
		got := <-ended
		require.NoError(t, got.err)
		require.Equal(t, 400<<10, got.Data.Len())
		got.Data.Free()
	})
}

// literal is a header field that goes into no table.
func literal(b []byte, name, value string) []byte {
	b = append(append(b, 0, byte(len(name))), name...)
	return append(append(b, byte(len(value))), value...)
}

// Header fields that a client names by an index of the table are many times larger for the inner server. What waits for it is bounded all the same.
func TestHeadersThatGrowForTheInnerServer(t *testing.T) {
	o := options(&echoes{})
	o.MaxStreams = 10_000
	s := wire.New(o)
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	defer running.Wait()
	defer s.Stop()
	accepted := make(chan net.Conn, 1)
	running.Go(func() {
		if conn, err := s.Inner().Accept(); err == nil {
			accepted <- conn
		}
	})
	defer func() { _ = s.Inner().Close() }()

	r := (&served{address: l.Addr().String()}).raw(t)
	head := func(block []byte) []byte {
		block = append(block, 0x83, 0x86) // POST, http
		block = literal(block, ":path", other)
		block = literal(block, ":authority", "a")
		return literal(block, "content-type", "application/grpc")
	}
	first := head(nil)
	encoder := hpack.NewEncoder(&r.block)
	for _, name := range []string{"x-a", "x-b"} { // both are in the client's table, which holds no more
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: name, Value: string(bytes.Repeat([]byte{'X'}, 1990))}))
	}
	first = append(first, r.block.Bytes()...)
	require.NoError(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndHeaders: true}))
	inner := <-accepted

	var sent bytes.Buffer
	frames := http2.NewFramer(&sent, nil)
	for i := range uint32(1000) {
		block := literal(head(nil), "x-c", string(rune('a'+i%26))+string(rune('a'+i/26%26))+"--------------------------------")
		block = append(block, 0xbe, 0xbf, 0xbe, 0xbf, 0xbe, 0xbf, 0xbe) // the two of the table, in turns
		require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 3, BlockFragment: block, EndHeaders: true}))
	}
	_, err = r.conn.Write(sent.Bytes())
	require.NoError(t, err)
	time.Sleep(200 * time.Millisecond) // until it has been read, as far as it is
	n, err := inner.Read(make([]byte, 64<<20))
	require.NoError(t, err)
	require.Less(t, n, 1<<20+64<<10, "bytes that wait for the inner server, of %d that the client has sent", sent.Len())
	_ = inner.Close()
}

// Stop ends a connection whose inner server does not read any more.
func TestStopDoesNotWaitForTheInnerServer(t *testing.T) {
	s := wire.New(options(&echoes{}))
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) })
	accepted := make(chan net.Conn, 1)
	running.Go(func() {
		if conn, err := s.Inner().Accept(); err == nil {
			accepted <- conn
		}
	})
	r := (&served{address: l.Addr().String()}).raw(t)
	require.NoError(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(otherFields), EndHeaders: true}))
	for range 200 {
		require.NoError(t, r.WriteData(1, false, make([]byte, 16<<10)))
	}
	conn := <-accepted
	time.Sleep(200 * time.Millisecond) // until it waits
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.Stop() }()
	select {
	case <-stopped:
	case <-time.After(20 * time.Second):
		t.Error("it waits for the inner server")
	}
	_ = conn.Close()
	_ = s.Inner().Close()
	<-stopped
	running.Wait()
}

// A change of the initial window concerns every stream of the connection. Whoever opens many streams and changes it without end loses the connection; a
// client that finds its window in some steps does not.
func TestSettingsThatConcernManyStreams(t *testing.T) {
	o := options(&echoes{})
	o.MaxStreams = 10_000
	r := serve(t, o).raw(t)
	for i := range uint32(9000) {
		r.open(2*i + 1)
	}
	change := func(times int) (err error) {
		for i := 0; i < times && err == nil; i++ {
			err = r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535 + uint32(i)})
		}
		return err
	}
	require.NoError(t, change(16))
	r.answers(20_001)
	go func() { _ = change(20_000) }()
	r.goesAway(http2.ErrCodeEnhanceYourCalm)
}

// plainly hides everything of a connection but net.Conn, as wrappers do.
type plainly struct{ net.Listener }

func (l plainly) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

// A client that still sends sees why its connection ends: closing the socket at once would reset it, and what the client has not received by then be lost.
func TestTheReasonArrives(t *testing.T) {
	for name, wrap := range map[string]func(net.Listener) net.Listener{
		"socket": func(l net.Listener) net.Listener { return l }, "wrapped": func(l net.Listener) net.Listener { return plainly{l} },
	} {
		t.Run(name, func(t *testing.T) {
			s := wire.New(options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
				m.Free()
				c.Reply(c.Turn(), mem.BufferSlice{mem.SliceBuffer(make([]byte, 60<<10))})
				c.Done()
			}}))
			l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var running sync.WaitGroup
			running.Go(func() { _ = s.Serve(wrap(l)) })
			defer running.Wait()
			defer s.Stop()
			conn, err := (&net.Dialer{Control: smallReceiveBuffer}).DialContext(t.Context(), "tcp", l.Addr().String())
			require.NoError(t, err)
			r := rawOn(t, conn)
			r.open(1)
			require.NoError(t, r.WriteData(1, true, framed([]byte("x"))))
			time.Sleep(50 * time.Millisecond) // the answer lies in the server's socket: the client's holds less
			var sent bytes.Buffer
			frames := http2.NewFramer(&sent, nil)
			frames.AllowIllegalWrites = true
			require.NoError(t, frames.WriteRawFrame(http2.FramePing, 0, 0, []byte("short")))
			sent.Write(make([]byte, 256<<10)) // of which the server reads a part
			_, err = conn.Write(sent.Bytes())
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond) // it would have closed the socket by now
			r.goesAway(http2.ErrCodeFrameSize)
		})
	}
}

// A message that is small beside what came with it does not hold the memory of all of it.
func TestSmallMessagesDoNotHoldChunks(t *testing.T) {
	const calls, size = 64, 9 << 10
	pool := &counting{}
	held := make(chan func(), calls)
	o := options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		held <- func() { m.Free(); c.Reply(nil, mem.BufferSlice{mem.SliceBuffer("x")}); c.Done() }
	}})
	o.Pool = pool
	s := serve(t, o)
	t.Cleanup(func() {
		for len(held) > 0 {
			(<-held)()
		}
	})
	r := s.raw(t)
	for i := range uint32(calls) {
		var sent bytes.Buffer
		frames := http2.NewFramer(&sent, nil)
		require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: r.encode(plainFields), EndHeaders: true}))
		require.NoError(t, frames.WriteData(2*i+1, true, framed(make([]byte, size))))
		for range 4 { // of no known kind
			require.NoError(t, frames.WriteRawFrame(0x99, 0, 0, make([]byte, 16<<10)))
		}
		_, err := r.conn.Write(sent.Bytes())
		require.NoError(t, err)
		require.Eventually(t, func() bool { return len(held) == int(i)+1 }, 30*time.Second, 100*time.Microsecond)
	}
	require.NoError(t, r.WritePing(false, [8]byte{1}))
	r.until(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
	require.Less(t, pool.out.Load(), int64(5*calls*size), "bytes that are held for %d of messages", calls*size)
}

// smallReceiveBuffer has a client's socket hold little.
func smallReceiveBuffer(_, _ string, raw syscall.RawConn) error {
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
	}); err != nil {
		return err
	}
	return failed
}
