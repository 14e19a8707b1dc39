// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// aged is a client of grpc-go's, which counts its connections.
func aged(t *testing.T, address string) (*grpc.ClientConn, *atomic.Int32) {
	made := new(atomic.Int32)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		made.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "tcp", to)
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn, made
}

// TestOldConnectionsAreReplaced: a client makes calls without a pause on connections that may not become old. It makes several connections, and no call fails.
func TestOldConnectionsAreReplaced(t *testing.T) {
	s := serve(t, wire.Options{
		Method: echo, Handler: &echoes{}, MaxMessage: 1 << 20, Window: 1 << 20, MaxStreams: 100, MaxHeaderList: 16 << 10, Handshake: time.Minute,
		MaxAge: func() time.Duration { return 20 * time.Millisecond },
	})
	conn, made := aged(t, s.address)
	for calls := 0; made.Load() < 5; calls++ {
		message := random(1000)
		var out batch.Frame
		err := conn.Invoke(t.Context(), echo, &batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(message)}}, &out, grpc.ForceCodecV2(batch.Codec{}))
		require.NoError(t, err, "call %d on connection %d", calls, made.Load())
		require.True(t, bytes.Equal(message, out.Data.Materialize()))
		out.Data.Free()
	}
}

// TestWhatOutlastsTheGraceIsCutOff: a stream stays open on a connection that has become old. It goes on for the time of grace.
func TestWhatOutlastsTheGraceIsCutOff(t *testing.T) {
	const age, grace = 30 * time.Millisecond, 60 * time.Millisecond
	s := serve(t, wire.Options{
		Method: echo, Handler: &echoes{}, MaxMessage: 1 << 20, Window: 1 << 20, MaxStreams: 100, MaxHeaderList: 16 << 10, Handshake: time.Minute,
		MaxAge: func() time.Duration { return age }, Grace: grace,
	})
	conn, _ := aged(t, s.address)
	began := time.Now()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, other, grpc.ForceCodecV2(batch.Codec{}))
	require.NoError(t, err)
	for err == nil {
		if err = stream.SendMsg(&batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer("x")}}); err == nil {
			var f batch.Frame
			err = stream.RecvMsg(&f)
			f.Data.Free()
		} else {
			err = stream.RecvMsg(&batch.Frame{})
		}
	}
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.GreaterOrEqual(t, time.Since(began), age+grace)
}
