// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// A call's context, and the timer of its deadline, end with the call.
func TestEndedCallEndsItsContext(t *testing.T) {
	contexts := make(chan context.Context, 1)
	s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		contexts <- c.Context()
		c.Reply(nil, m)
		c.Done()
	}}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := call(ctx, s.dial(t), echo, []byte("x"))
	require.NoError(t, err)
	select {
	case <-(<-contexts).Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the context of an answered call, and its timer, live until the deadline")
	}
}

var otherFields = [][2]string{
	{":method", "POST"}, {":scheme", "http"}, {":path", other}, {":authority", "a"}, {"content-type", "application/grpc"}, {"te", "trailers"},
}

// Data of streams that the client resets count as sent: the inner server goes on with others.
func TestResetInnerStreamsGiveTheirWindowBack(t *testing.T) {
	s := serve(t, options(&echoes{}))
	r := s.raw(t)
	require.NoError(t, r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
	id := uint32(1)
	for range 12 {
		require.NoError(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(otherFields), EndHeaders: true}))
		m := framed(make([]byte, 200<<10))
		for len(m) > 0 {
			n := min(len(m), 16<<10)
			require.NoError(t, r.WriteData(id, false, m[:n]))
			m = m[n:]
		}
		time.Sleep(30 * time.Millisecond) // the answer waits for the connection's window
		require.NoError(t, r.WriteRSTStream(id, http2.ErrCodeCancel))
		id += 2
	}
	require.NoError(t, r.WriteWindowUpdate(0, 1<<30))
	require.NoError(t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(otherFields), EndHeaders: true}))
	require.NoError(t, r.WriteData(id, true, framed([]byte("still there"))))
	r.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.HeadersFrame)
		return ok && h.StreamID == id && h.StreamEnded()
	})
}

// Calls that the client has reset are not kept until the connection's window opens.
func TestResetCallsThatWaitForTheWindowAreForgotten(t *testing.T) {
	var begun, gone atomic.Int64
	s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		state := new([1 << 10]byte)
		begun.Add(1)
		runtime.AddCleanup(state, func(struct{}) { gone.Add(1) }, struct{}{})
		c.State = state
		c.Reply(nil, m)
		c.Done()
	}}))
	r := s.raw(t)
	id := uint32(1)
	for range 8 { // fill the window
		r.open(id)
		require.NoError(t, r.WriteData(id, true, framed(make([]byte, 12<<10))))
		id += 2
	}
	go func() {
		for {
			if _, err := r.ReadFrame(); err != nil {
				return
			}
		}
	}()
	for range 500 {
		r.open(id)
		require.NoError(t, r.WriteData(id, true, framed([]byte("x"))))
		require.NoError(t, r.WriteRSTStream(id, http2.ErrCodeCancel))
		id += 2
	}
	require.Eventually(t, func() bool { runtime.GC(); return begun.Load() == 508 && gone.Load() >= 480 }, 30*time.Second, 50*time.Millisecond, "kept")
}

// A client that sends and does not read is not read from, whatever the answers are.
func TestUnreadAnswersAreBounded(t *testing.T) {
	long := status.Error(codes.Unavailable, strings.Repeat("too much. ", 500)) // no entry of the table of header fields
	for name, refused := range map[string]error{"errors": long, "small messages": nil} {
		t.Run(name, func(t *testing.T) {
			var begun atomic.Int64
			s := serve(t, options(&echoes{begin: func(*wire.Call) error { begun.Add(1); return refused }}))
			r := s.raw(t)
			require.NoError(t, r.WriteWindowUpdate(0, 1<<31-1-65535))
			const calls = 60_000
			require.NoError(t, r.conn.SetDeadline(time.Now().Add(4*time.Second)))
			for id := uint32(1); id < 2*calls; id += 2 {
				err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(plainFields), EndHeaders: true, EndStream: refused != nil})
				if err == nil && refused == nil {
					err = r.WriteData(id, true, framed(make([]byte, 400)))
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				require.NoError(t, err)
			}
			for before := int64(-1); before != begun.Load(); time.Sleep(300 * time.Millisecond) {
				before = begun.Load()
			}
			require.Less(t, begun.Load(), int64(calls/2), "calls begun of which no answer was read")
		})
	}
}

// drained has a server drain, and takes part in it as a client does. The server refuses streams after the last one; stopped is closed at its end.
func (r *raw) drained(s *served, last uint32) (stopped <-chan struct{}) {
	ended := make(chan struct{})
	go func() { s.GracefulStop(); close(ended) }()
	r.until(func(f http2.Frame) bool {
		p, ok := f.(*http2.PingFrame)
		if ok && !p.IsAck() {
			require.NoError(r.t, r.WritePing(true, p.Data))
		}
		return ok
	})
	r.until(func(f http2.Frame) bool { g, ok := f.(*http2.GoAwayFrame); return ok && g.LastStreamID == last })
	return ended
}

// What was answered before the connection drains arrives, also if the client sends meanwhile.
func TestDrainDoesNotLoseTheLastAnswer(t *testing.T) {
	for _, size := range []int{1 << 20, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			begun, release := make(chan struct{}), make(chan struct{})
			answer := sync.OnceFunc(func() { close(release) })
			s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
				m.Free()
				close(begun)
				go func() {
					<-release
					c.Reply(nil, mem.BufferSlice{mem.SliceBuffer(make([]byte, size))})
					c.Done()
				}()
			}}))
			t.Cleanup(answer)
			r := s.raw(t)
			require.NoError(t, r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}))
			require.NoError(t, r.WriteWindowUpdate(0, 1<<30))
			r.open(1)
			require.NoError(t, r.WriteData(1, true, framed([]byte("x"))))
			<-begun
			stopped := r.drained(s, 1)
			answer()
			time.Sleep(200 * time.Millisecond) // the kernel has the answer
			got := 0
			r.until(func(f http2.Frame) bool {
				if d, ok := f.(*http2.DataFrame); ok {
					got += len(d.Data())
					_ = r.WriteWindowUpdate(0, uint32(len(d.Data())))
				}
				h, ok := f.(*http2.HeadersFrame)
				return ok && h.StreamEnded()
			})
			require.Equal(t, size+5, got)
			_ = r.conn.Close()
			<-stopped
		})
	}
}

// Streams above the last of GOAWAY are ignored, and the others go on.
func TestStreamsAfterGoAwayAreIgnored(t *testing.T) {
	s, begun, answer := holding(t)
	r := s.raw(t)
	r.open(1)
	require.NoError(t, r.WriteData(1, true, framed([]byte("x"))))
	<-begun
	stopped := r.drained(s, 1)
	r.open(3)
	require.NoError(t, r.WriteData(3, true, framed([]byte("y"))))
	require.NoError(t, r.WriteWindowUpdate(3, 1))
	require.NoError(t, r.WriteRSTStream(3, http2.ErrCodeCancel))
	require.NoError(t, r.WritePing(false, [8]byte{1}))
	r.until(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
	answer()
	r.until(func(f http2.Frame) bool {
		h, ok := f.(*http2.HeadersFrame)
		return ok && h.StreamID == 1 && h.StreamEnded()
	})
	_ = r.conn.Close()
	<-stopped
}

// against is a client, and its server, which answers what a test says.
func against(t *testing.T, pool mem.BufferPool) (*wire.Client, *raw) {
	return againstWith(t, wire.ClientOptions{Authority: "a", Window: 4 << 20, MaxMessage: 1 << 20, Pool: pool})
}

// answersStill makes a second call, which the server answers: the end of the one before has cost the connection nothing.
func answersStill(t *testing.T, c *wire.Client, s *raw) {
	t.Helper()
	_, ended := start(t, c, nil, []byte("x"))
	s.fields(3, false, [2]string{":status", "200"})
	require.NoError(t, s.WriteData(3, false, framed([]byte("y"))))
	s.fields(3, true, [2]string{"grpc-status", "0"})
	got := <-ended
	require.NoError(t, got.err)
	got.Data.Free()
}

func againstWith(t *testing.T, o wire.ClientOptions) (*wire.Client, *raw) {
	return connectedTo(t, o, func(s *raw) error { return s.WriteSettings() })
}

// connectedTo is a client of a server that begins as a test says.
func connectedTo(t *testing.T, o wire.ClientOptions, begin func(*raw) error) (*wire.Client, *raw) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	dialled, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	conn, err := l.Accept()
	require.NoError(t, err)
	c := wire.NewClient(dialled, o)
	t.Cleanup(func() { c.Close(); _ = conn.Close() })
	_, err = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	s := &raw{Framer: http2.NewFramer(conn, conn), t: t, conn: conn}
	s.hpack = hpack.NewEncoder(&s.block)
	require.NoError(t, begin(s))
	return c, s
}

// fields sends header fields.
func (r *raw) fields(id uint32, end bool, fields ...[2]string) {
	require.NoError(r.t, r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(fields), EndHeaders: true, EndStream: end}))
}

// LastWord is the server's own.
func TestClientDoesNotTakeAStatusOfAProxyForTheServers(t *testing.T) {
	c, s := against(t, nil)
	_, ended := start(t, c, nil, []byte("x"))
	s.fields(1, true, [2]string{":status", "504"})
	got := <-ended
	require.Equal(t, codes.Unavailable, status.Code(got.err))
	require.False(t, got.LastWord)
}

func TestClientSaysThatAnAnswerIsCompressed(t *testing.T) {
	c, s := against(t, nil)
	_, ended := start(t, c, nil, []byte("x"))
	s.fields(1, false, [2]string{":status", "200"})
	require.NoError(t, s.WriteData(1, false, []byte{1, 0, 0, 0, 1, 7}))
	s.fields(1, true, [2]string{"grpc-status", "0"})
	require.ErrorContains(t, (<-ended).err, "compressed")
}

// The status of a proxy's page is the call's end, whatever the page says and however long it is.
func TestClientTakesTheStatusOfAPage(t *testing.T) {
	c, s := against(t, nil)
	_, ended := start(t, c, nil, []byte("x"))
	s.fields(1, false, [2]string{":status", "502"}, [2]string{"content-type", "text/html"})
	require.NoError(t, s.WriteData(1, true, []byte("<html>Bad Gateway</html>")))
	got := <-ended
	require.Equal(t, codes.Unavailable, status.Code(got.err), got.err)
	require.ErrorContains(t, got.err, "502")
	require.False(t, got.LastWord)
}

// The end of a call does not wait for the rest of an answer that is not taken: there is no window for it, so it would never come.
func TestClientDoesNotWaitForAnswersThatItDoesNotTake(t *testing.T) {
	for name, c := range map[string]struct {
		prefix []byte
		text   string
	}{
		"too large":  {[]byte{0, 0x7f, 0, 0, 0}, "more than"},
		"compressed": {[]byte{1, 0x7f, 0, 0, 0}, "compressed"},
		"not alone":  {framed([]byte("x")), "more than one message"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &counting{}
			client, s := against(t, pool)
			_, ended := start(t, client, nil, []byte("x"))
			s.fields(1, false, [2]string{":status", "200"})
			require.NoError(t, s.WriteData(1, false, append(c.prefix, make([]byte, 10<<10)...)))
			s.resets(1, http2.ErrCodeCancel)
			require.ErrorContains(t, (<-ended).err, c.text)
			require.NoError(t, s.WriteDataPadded(1, false, make([]byte, 10<<10), make([]byte, 9))) // it was under way
			answersStill(t, client, s)
			client.Close()
			require.Zero(t, pool.out.Load())
		})
	}
}

// The largest answer that there can be has the largest window that there can be, and no more: a server that counts would reset the stream.
func TestClientGivesNoWindowBeyondTheLargest(t *testing.T) {
	const window = 4 << 20
	prefix := []byte{0, 0x7f, 0xff, 0xff, 0xff}
	c, s := againstWith(t, wire.ClientOptions{Authority: "a", Window: window, MaxMessage: math.MaxInt32})
	start(t, c, nil, []byte("x"))
	s.fields(1, false, [2]string{":status", "200"})
	require.NoError(t, s.WriteData(1, false, prefix))
	given := window - len(prefix)
	s.until(func(f http2.Frame) bool {
		w, ok := f.(*http2.WindowUpdateFrame)
		if ok = ok && w.StreamID == 1; ok {
			given += int(w.Increment)
		}
		return ok
	})
	require.Equal(t, 1<<31-1, given)
}

// Before the server has said how many calls it allows at once, a client begins no more than nearly every server does: the others would be refused. They go another way.
func TestClientBeginsFewCallsBeforeTheSettings(t *testing.T) {
	for name, c := range map[string]struct {
		settings []http2.Setting
		more     bool
	}{
		"a server that does not limit them": {nil, true},
		"a server that allows 100":          {[]http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 100}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, s := connectedTo(t, wire.ClientOptions{Authority: "a", Window: 4 << 20, MaxMessage: 1 << 20}, func(*raw) error { return nil })
			another := func() error {
				_, err := client.Start(nil, echo, nil, nil, func(*wire.Turn, wire.Answer, error) {})
				return err
			}
			for range 100 {
				require.NoError(t, another())
			}
			require.ErrorIs(t, another(), wire.ErrNotBegun)
			require.NoError(t, s.WriteSettings(c.settings...))
			s.until(func(f http2.Frame) bool { a, ok := f.(*http2.SettingsFrame); return ok && a.IsAck() })
			if err := another(); c.more {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, wire.ErrNotBegun)
			}
		})
	}
}

// What has come of the answers to cancelled calls goes back to the pool.
func TestClientFreesAnswersOfCancelledCalls(t *testing.T) {
	pool := &counting{}
	c, s := against(t, pool)
	part := append([]byte{0, 0, 2, 0, 0}, make([]byte, 10<<10)...) // of 128 KiB
	for id := uint32(1); id < 20; id += 2 {
		k, ended := start(t, c, nil, []byte("x"))
		s.fields(id, false, [2]string{":status", "200"})
		require.NoError(t, s.WriteData(id, false, part))
		require.NoError(t, s.WritePing(false, [8]byte{}))
		s.until(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
		require.NotZero(t, pool.out.Load())
		require.True(t, k.Cancel())
		<-ended
	}
	c.Close()
	require.Zero(t, pool.out.Load())
}
