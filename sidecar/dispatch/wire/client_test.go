// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// library is a server of grpc-go's that serves every method with a handler.
func library(t *testing.T, handle func(grpc.ServerStream) error) string {
	s := grpc.NewServer(grpc.ForceServerCodecV2(batch.Codec{}), grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return handle(stream) }))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// connect is a client on a new connection.
func connect(t *testing.T, address string) *wire.Client {
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	c := wire.NewClient(conn, wire.ClientOptions{Authority: address, UserAgent: "test", Window: 4 << 20, MaxMessage: 64 << 20})
	t.Cleanup(c.Close)
	return c
}

type result struct {
	wire.Answer
	err error
}

// start begins a call.
func start(t *testing.T, c *wire.Client, md metadata.MD, message []byte) (*wire.ClientCall, <-chan result) {
	ended := make(chan result, 1)
	k, err := c.Start(nil, echo, md, mem.BufferSlice{mem.SliceBuffer(message)}, func(_ *wire.Turn, a wire.Answer, err error) { ended <- result{a, err} })
	require.NoError(t, err)
	return k, ended
}

func echoOnce(stream grpc.ServerStream) error {
	var f batch.Frame
	if err := stream.RecvMsg(&f); err != nil {
		return err
	}
	return stream.SendMsg(&f)
}

func TestClientMessagesOfEverySize(t *testing.T) {
	c := connect(t, library(t, echoOnce))
	var calls sync.WaitGroup
	defer calls.Wait()
	for _, size := range []int{0, 1, 1000, 16379, 65536, 614_400, 6 << 20, 20 << 20} {
		calls.Go(func() {
			message := random(size)
			_, ended := start(t, c, nil, message)
			got := <-ended
			assert.NoError(t, got.err)
			assert.True(t, got.LastWord)
			assert.True(t, bytes.Equal(message, got.Data.Materialize()), "%d bytes", size)
			got.Data.Free()
		})
	}
}

func TestClientErrorsAndMetadata(t *testing.T) {
	c := connect(t, library(t, func(stream grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		_ = stream.SetHeader(metadata.Pairs("h", md["x"][0]))
		stream.SetTrailer(metadata.Pairs("t-bin", "\x00\x01"))
		s, _ := status.New(codes.ResourceExhausted, "100% of Tritön's\nwords").WithDetails(status.New(codes.Aborted, "detail").Proto())
		return s.Err()
	}))
	_, ended := start(t, c, metadata.Pairs("x", "1"), []byte("m"))
	got := <-ended
	require.Equal(t, codes.ResourceExhausted, status.Code(got.err))
	require.Equal(t, "100% of Tritön's\nwords", status.Convert(got.err).Message())
	require.Len(t, status.Convert(got.err).Details(), 1)
	require.True(t, got.LastWord)
	require.Equal(t, []string{"\x00\x01"}, got.Trailer["t-bin"])
}

// How a call ends without an answer is a kind of error, and not a text.
func TestHowCallsEnd(t *testing.T) {
	release := make(chan struct{})
	address := library(t, func(stream grpc.ServerStream) error {
		select {
		case <-stream.Context().Done():
		case <-release:
		}
		return stream.Context().Err()
	})
	c := connect(t, address)
	k, ended := start(t, c, nil, []byte("m"))
	require.True(t, k.Cancel())
	require.False(t, k.Cancel())
	got := <-ended
	require.ErrorIs(t, got.err, wire.ErrCancelled)
	require.False(t, got.LastWord)
	_, ended = start(t, c, nil, []byte("m"))
	c.Close()
	got = <-ended
	require.ErrorIs(t, got.err, wire.ErrLost)
	require.False(t, got.LastWord)
	_, err := c.Start(nil, echo, nil, mem.BufferSlice{mem.SliceBuffer("m")}, nil)
	require.ErrorIs(t, err, wire.ErrNotBegun)
	close(release)
}

// A second message in an answer ends the call as it does with grpc-go, also where there is no window for all of it.
func TestAnswersOfSeveralMessages(t *testing.T) {
	for _, size := range []int{0, 1, 20 << 20} {
		address := library(t, func(stream grpc.ServerStream) error {
			var f batch.Frame
			if err := stream.RecvMsg(&f); err != nil {
				return err
			}
			f.Data.Free()
			for range 2 {
				if err := stream.SendMsg(&batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(make([]byte, size))}}); err != nil {
					return err
				}
			}
			return nil
		})
		_, err := call(t.Context(), (&served{address: address}).dial(t), echo, []byte("x"))
		require.Equal(t, codes.Internal, status.Code(err), err)
		_, ended := start(t, connect(t, address), nil, []byte("x"))
		select {
		case got := <-ended:
			require.Equal(t, codes.Internal, status.Code(got.err), "%d bytes: %v", size, got.err)
		case <-time.After(30 * time.Second):
			t.Fatalf("%d bytes: the call goes on", size)
		}
	}
}

// A server that drains refuses what it has not begun.
func TestAServerThatDrains(t *testing.T) {
	c, s := against(t, nil)
	_, first := start(t, c, nil, []byte("1"))
	_, second := start(t, c, nil, []byte("2"))
	_, third := start(t, c, nil, []byte("3"))
	require.NoError(t, s.WriteRSTStream(5, http2.ErrCodeRefusedStream))
	require.ErrorIs(t, (<-third).err, wire.ErrNotBegun)
	require.NoError(t, s.WriteGoAway(1, http2.ErrCodeNo, nil))
	require.ErrorIs(t, (<-second).err, wire.ErrNotBegun)
	_, err := c.Start(nil, echo, nil, mem.BufferSlice{mem.SliceBuffer("4")}, nil)
	require.ErrorIs(t, err, wire.ErrNotBegun)
	s.fields(1, true, [2]string{":status", "200"}, [2]string{"grpc-status", "5"})
	require.Equal(t, codes.NotFound, status.Code((<-first).err), "what it has begun is answered")
}

// A server that answers no ping while there are calls is lost.
func TestASilentServer(t *testing.T) {
	client, server := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	defer server.Close()
	c := wire.NewClient(client, wire.ClientOptions{Authority: "a", Window: 1 << 20, MaxMessage: 1 << 20, Idle: 50 * time.Millisecond, Patience: 100 * time.Millisecond})
	defer c.Close()
	_, ended := start(t, c, nil, []byte("1"))
	require.ErrorIs(t, (<-ended).err, wire.ErrLost)
}

// Calls over TLS, to both servers.
func TestTLS(t *testing.T) {
	server, client := certificates(t)
	o := options(&echoes{})
	o.Credentials = server
	s := serve(t, o, grpc.Creds(passed{server}))
	conn := s.dial(t, secure(client))
	for _, method := range []string{echo, other} {
		message := random(200_000)
		got, err := call(t.Context(), conn, method, message)
		require.NoError(t, err)
		require.True(t, bytes.Equal(message, got))
	}
	plain := s.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := call(ctx, plain, echo, nil)
	require.Error(t, err, "a client in the clear")

	to, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	require.NoError(t, err)
	secured, _, err := client.ClientHandshake(t.Context(), "127.0.0.1", to)
	require.NoError(t, err)
	c := wire.NewClient(secured, wire.ClientOptions{Authority: "a", Secure: true, Window: 4 << 20, MaxMessage: 1 << 20})
	defer c.Close()
	_, ended := start(t, c, nil, random(200_000))
	got := <-ended
	require.NoError(t, got.err)
	require.Equal(t, 200_000, got.Data.Len())
}
