// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// pipes is a listener whose connections are made by the test.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// frames is what a client or a server sends.
func frames(send func(f *http2.Framer, block func(...[2]string) []byte)) []byte {
	var out, block bytes.Buffer
	f := http2.NewFramer(&out, nil)
	f.AllowIllegalWrites = true
	encoder := hpack.NewEncoder(&block)
	send(f, func(fields ...[2]string) []byte {
		block.Reset()
		for _, h := range fields {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		return append([]byte(nil), block.Bytes()...)
	})
	return out.Bytes()
}

// FuzzServer: whatever a client sends, the server does not fail, every call that began ends once, and every buffer is given back.
func FuzzServer(f *testing.F) {
	f.Add(frames(func(f *http2.Framer, block func(...[2]string) []byte) {
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(plainFields...), EndHeaders: true})
		_ = f.WriteData(1, true, framed([]byte("hello")))
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block(append(plainFields[:len(plainFields):len(plainFields)], [2]string{"grpc-timeout", "1n"})...), EndHeaders: true})
		_ = f.WriteDataPadded(3, false, framed([]byte("hello"))[:7], make([]byte, 3))
		_ = f.WriteRSTStream(3, 0)
		_ = f.WritePing(false, [8]byte{})
		_ = f.WriteWindowUpdate(0, 100)
		_ = f.WriteGoAway(0, 0, nil)
	}))
	f.Add(frames(func(f *http2.Framer, block func(...[2]string) []byte) {
		_ = f.WriteSettings()
		fields := append([][2]string{}, plainFields...)
		fields[2] = [2]string{":path", other}
		b := block(fields...)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:5], Priority: http2.PriorityParam{Weight: 3}})
		_ = f.WriteContinuation(1, true, b[5:])
		_ = f.WriteData(1, false, framed([]byte("hello")))
		_ = f.WriteWindowUpdate(1, 100)
		_ = f.WriteDataPadded(1, true, framed([]byte("hello")), make([]byte, 3))
	}))
	f.Fuzz(func(t *testing.T, input []byte) {
		var open atomic.Int64
		pool := &counting{}
		h := &echoes{
			begin: func(*wire.Call) error { open.Add(1); return nil },
			serve: func(c *wire.Call, m mem.BufferSlice) { c.Reply(c.Turn(), m); open.Add(-1); c.Done() },
		}
		o := options(h)
		o.Pool = pool
		s := wire.New(o)
		inner := grpc.NewServer(grpc.ForceServerCodecV2(batch.Codec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			var f batch.Frame
			if err := stream.RecvMsg(&f); err != nil {
				return err
			}
			return stream.SendMsg(&f)
		}))
		ended := make(chan struct{}, 2)
		l := newPipes()
		go func() { _ = inner.Serve(s.Inner()); ended <- struct{}{} }()
		go func() { _ = s.Serve(l); ended <- struct{}{} }()
		client, server := net.Pipe()
		l.conns <- server
		read := make(chan struct{})
		go func() { defer close(read); _, _ = io.Copy(io.Discard, client) }()
		require.NoError(t, client.SetDeadline(time.Now().Add(30*time.Second)))
		_, _ = io.WriteString(client, http2.ClientPreface) // it may be refused
		_, _ = client.Write(input)
		_ = client.Close()
		<-read
		s.Stop()
		inner.Stop()
		<-ended
		<-ended
		require.Equal(t, int64(len(h.losses())), open.Load(), "a call neither served nor lost")
		require.Zero(t, pool.out.Load(), "bytes that were not given back")
	})
}

// FuzzClient: whatever a server sends, a call ends once.
func FuzzClient(f *testing.F) {
	f.Add(frames(func(f *http2.Framer, block func(...[2]string) []byte) {
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		_ = f.WriteSettingsAck()
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block([2]string{":status", "200"}, [2]string{"content-type", "application/grpc"}), EndHeaders: true})
		_ = f.WriteData(1, false, framed([]byte("hello")))
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block([2]string{"grpc-status", "0"}), EndHeaders: true, EndStream: true})
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block([2]string{":status", "200"}, [2]string{"grpc-status", "5"}, [2]string{"grpc-message", "not%20found"}), EndHeaders: true, EndStream: true})
	}))
	f.Add(frames(func(f *http2.Framer, _ func(...[2]string) []byte) {
		_ = f.WriteSettings()
		_ = f.WriteRSTStream(1, http2.ErrCodeRefusedStream)
		_ = f.WritePing(false, [8]byte{1})
		_ = f.WriteWindowUpdate(3, 10)
		_ = f.WriteGoAway(1, 0, []byte("bye"))
	}))
	f.Fuzz(func(t *testing.T, input []byte) {
		pool := &counting{}
		server, client := net.Pipe()
		c := wire.NewClient(client, wire.ClientOptions{Authority: "a", Window: 1 << 16, MaxMessage: 1 << 20, Pool: pool})
		go func() { _, _ = io.Copy(io.Discard, server) }()
		var ended [2]atomic.Int32
		begun := [2]bool{}
		for i := range ended {
			_, err := c.Start(nil, echo, nil, mem.BufferSlice{mem.SliceBuffer("x")}, func(_ *wire.Turn, a wire.Answer, _ error) {
				a.Data.Free()
				ended[i].Add(1)
			})
			begun[i] = err == nil
		}
		require.NoError(t, server.SetDeadline(time.Now().Add(30*time.Second)))
		_, _ = server.Write(input) // it may be refused
		_ = server.Close()
		<-c.Done()
		for i := range ended {
			require.Equal(t, begun[i], ended[i].Load() == 1)
		}
		require.Zero(t, pool.out.Load(), "bytes that were not given back")
	})
}
