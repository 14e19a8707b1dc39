// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// random is n bytes.
func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// Messages of every size come back as they were, whichever server answers, on one connection at once.
func TestMessagesOfEverySize(t *testing.T) {
	s := serve(t, options(&echoes{}))
	conn := s.dial(t)
	var calls sync.WaitGroup
	defer calls.Wait()
	for _, size := range []int{0, 1, 100, 1000, 16379, 16380, 65530, 65536, 200_000, 614_400, 3 << 20, 6 << 20, 20 << 20} {
		for _, method := range []string{echo, other} {
			calls.Go(func() {
				message := random(size)
				got, err := call(t.Context(), conn, method, message)
				assert.NoError(t, err, "%s of %d bytes", method, size)
				assert.True(t, bytes.Equal(message, got), "%s of %d bytes", method, size)
			})
		}
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	answers := make(chan func(), 10_000)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for answer := range answers {
				answer()
			}
		})
	}
	t.Cleanup(func() { close(answers); workers.Wait() }) // after the server has stopped
	s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		answers <- func() { c.Reply(nil, m); c.Done() }
	}}))
	conn := s.dial(t)
	var calls sync.WaitGroup
	defer calls.Wait()
	for i := range 32 {
		calls.Go(func() {
			for k := range 100 {
				message := bytes.Repeat([]byte{byte(i)}, 1+k*400)
				method := echo
				if k%5 == 0 {
					method = other
				}
				got, err := call(t.Context(), conn, method, message)
				require.NoError(t, err)
				require.True(t, bytes.Equal(message, got))
			}
		})
	}
}

func TestErrorsAndMetadata(t *testing.T) {
	seen := make(chan metadata.MD, 1)
	s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		m.Free()
		md, _ := metadata.FromIncomingContext(c.Context())
		seen <- md
		require.NoError(t, grpc.SetHeader(c.Context(), metadata.Pairs("a-bin", "\x00\xff")))
		require.NoError(t, grpc.SetTrailer(c.Context(), metadata.Pairs("b", "2")))
		c.Fail(nil, status.Error(codes.NotFound, "100% of Tritön's\nwords"))
		c.Done()
	}}))
	conn := s.dial(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x", "1", "x", "2", "y-bin", "\x01\xfe")
	var header, trailer metadata.MD
	_, err := call(ctx, conn, echo, nil, grpc.Header(&header), grpc.Trailer(&trailer))
	require.Equal(t, codes.NotFound, status.Code(err))
	require.Equal(t, "100% of Tritön's\nwords", status.Convert(err).Message())
	md := <-seen
	require.Equal(t, []string{"1", "2"}, md["x"])
	require.Equal(t, []string{"\x01\xfe"}, md["y-bin"])
	require.Equal(t, []string{"2"}, trailer["b"])
	require.Equal(t, []string{"\x00\xff"}, trailer["a-bin"])
}

func TestDeadlines(t *testing.T) {
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		m.Free()
		begun <- struct{}{}
		go func() {
			<-c.Context().Done()
			ended <- c.Context().Err()
			c.Done() // the answer is the server's
		}()
	}}))
	conn := s.dial(t)
	_, err := call(t.Context(), conn, other, nil) // so that the deadline is not over before there is a connection
	require.NoError(t, err)
	for patience := 50 * time.Millisecond; ; patience *= 2 { // a busy machine may need more to begin the call
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err = call(ctx, conn, echo, nil)
		cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		if len(begun) > 0 {
			break
		}
	}
	<-begun
	require.ErrorIs(t, <-ended, context.DeadlineExceeded)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err = call(ctx, conn, echo, nil)
	require.Equal(t, codes.Canceled, status.Code(err))
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestStreamsOfTheInnerServer(t *testing.T) {
	s := serve(t, options(&echoes{}))
	conn := s.dial(t)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, other)
	require.NoError(t, err)
	for i := range 50 {
		message := random(i * 1000)
		require.NoError(t, stream.SendMsg(&batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(message)}}))
		var got batch.Frame
		require.NoError(t, stream.RecvMsg(&got))
		require.True(t, bytes.Equal(message, got.Data.Materialize()))
		got.Data.Free()
		back, err := call(t.Context(), conn, echo, message)
		require.NoError(t, err)
		require.True(t, bytes.Equal(message, back))
	}
	require.NoError(t, stream.CloseSend())
	require.ErrorContains(t, stream.RecvMsg(&batch.Frame{}), "EOF")
}

// GracefulStop answers what was accepted, and clients begin nothing more.
func TestGracefulStop(t *testing.T) {
	s, begun, release := holding(t)
	conn := s.dial(t)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, other)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(&batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer("a")}}))
	var got batch.Frame
	require.NoError(t, stream.RecvMsg(&got))
	got.Data.Free()
	answer := make(chan error, 1)
	go func() { _, err := call(t.Context(), conn, echo, []byte("x")); answer <- err }()
	<-begun
	stopped := make(chan struct{})
	go func() { s.GracefulStop(); close(stopped) }()
	require.True(t, conn.WaitForStateChange(t.Context(), connectivity.Ready), "the client is told")
	_, err = call(t.Context(), conn, echo, []byte("x"))
	require.Equal(t, codes.Unavailable, status.Code(err), "no more is accepted")
	release()
	require.NoError(t, <-answer)
	select {
	case <-stopped:
		require.Fail(t, "the stream has not ended")
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, stream.CloseSend())
	require.ErrorContains(t, stream.RecvMsg(&batch.Frame{}), "EOF")
	<-stopped
}

// Messages stay as they came while others are read into the same buffers and beside them.
func TestMessagesThatAreKept(t *testing.T) {
	const calls = 40
	kept := make(chan func(), calls)
	s := serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		kept <- func() { c.Reply(nil, m); c.Done() }
	}}))
	conn := s.dial(t)
	var running sync.WaitGroup
	for i := range calls {
		running.Go(func() {
			message := random(i * 37_000)
			got, err := call(t.Context(), conn, echo, message)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(message, got), "%d bytes", len(message))
		})
	}
	answers := make([]func(), calls)
	for i := range answers {
		answers[i] = <-kept
	}
	for _, answer := range answers {
		answer()
	}
	running.Wait()
}
