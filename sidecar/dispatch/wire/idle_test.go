// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// readied is a listener of connections that take a buffer once a byte has come, as the gate's do.
type readied struct{ net.Listener }

func (l readied) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return readiedConn{c}, nil
}

type readiedConn struct{ net.Conn }

func (c readiedConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	var first [1]byte
	n, err := c.Read(first[:])
	if err != nil {
		return nil, 0, err
	}
	buf := pool.Get(size)
	return buf, copy(*buf, first[:n]), nil
}

// on serves a listener with a server.
func on(t *testing.T, o wire.Options, wrap func(net.Listener) net.Listener) (address string) {
	s := wire.New(o)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(wrap(l)) })
	t.Cleanup(func() {
		s.Stop()
		running.Wait()
	})
	return l.Addr().String()
}

// TestAPartOfAHeadHoldsNoChunk: who sends the beginning of a frame and then nothing holds no buffer that is meant for messages.
func TestAPartOfAHeadHoldsNoChunk(t *testing.T) {
	pool := &counting{}
	o := options(&echoes{})
	o.Pool = pool
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", on(t, o, func(l net.Listener) net.Listener { return readied{l} }))
	require.NoError(t, err)
	r := rawOn(t, conn)
	require.NoError(t, r.WritePing(false, [8]byte{1}))
	_, err = conn.Write([]byte{0, 0, 0, 4}) // of SETTINGS
	require.NoError(t, err)
	r.until(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
	require.Eventually(t, func() bool { return pool.out.Load() == 0 }, 30*time.Second, time.Millisecond, "bytes held for four")
	_, err = conn.Write([]byte{0, 0, 0, 0, 0})
	require.NoError(t, err)
	r.until(func(f http2.Frame) bool { s, ok := f.(*http2.SettingsFrame); return ok && s.IsAck() })
}

// TestAnIdleSecureConnectionHoldsLittle: it takes a buffer before there is something to read, which is of the size of a record.
func TestAnIdleSecureConnectionHoldsLittle(t *testing.T) {
	pool := &counting{}
	server, client := certificates(t)
	o := options(&echoes{})
	o.Pool, o.Credentials = pool, server
	raw, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", on(t, o, func(l net.Listener) net.Listener { return l }))
	require.NoError(t, err)
	conn, _, err := client.ClientHandshake(t.Context(), "127.0.0.1", raw)
	require.NoError(t, err)
	r := rawOn(t, conn)
	require.NoError(t, r.WritePing(false, [8]byte{1}))
	r.until(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
	require.Eventually(t, func() bool { return pool.out.Load() <= 16<<10 }, 30*time.Second, time.Millisecond)
}

// slow are credentials whose handshake ends when a test says so.
type slow struct {
	credentials.TransportCredentials
	end chan struct{}
}

func (s slow) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	<-s.end
	return raw, nil, nil
}

// TestSettingsComeBeforeTheGoawayOfADrain: of a connection whose handshake ends while the server drains, too. To a client another first frame is an error of the protocol.
func TestSettingsComeBeforeTheGoawayOfADrain(t *testing.T) {
	o := options(&echoes{})
	end := make(chan struct{})
	o.Credentials = slow{end: end}
	s := wire.New(o)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	accepted := make(chan struct{}, 1)
	running.Go(func() { _ = s.Serve(telling{l, accepted}) })
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	r := rawOn(t, conn)
	<-accepted
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.GracefulStop() }()
	running.Wait() // its listener is closed, and what it has accepted is drained
	close(end)
	f, err := r.ReadFrame()
	require.NoError(t, err)
	require.IsType(t, &http2.SettingsFrame{}, f)
	r.until(func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok })
	require.NoError(t, conn.Close())
	<-stopped
}

// telling is a listener that tells of what it accepts once the next is asked for.
type telling struct {
	net.Listener
	accepted chan<- struct{}
}

func (l telling) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		defer func() { l.accepted <- struct{}{} }()
	}
	return c, err
}
