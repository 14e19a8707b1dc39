// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// second holds the second attempt of a call between its header fields and its message.
type second struct {
	ended    <-chan struct{}
	attempts int
}

func (*second) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*second) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*second) HandleConn(context.Context, stats.ConnStats)                       {}

func (s *second) HandleRPC(_ context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutHeader); ok {
		if s.attempts++; s.attempts == 2 {
			<-s.ended
		}
	}
}

// TestACallThatIsRefusedBeforeItsMessageIsLost: grpc-go makes a call again that the server has refused, which refuses it once more before the message is handed over. grpc-go's
// error is io.EOF then.
func TestACallThatIsRefusedBeforeItsMessageIsLost(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *forward.Conn, *batch.Frame) error{
		"passed on": func(ctx context.Context, c *forward.Conn, request *batch.Frame) error {
			_, err := call(ctx, c, request)
			return err
		},
		"a generated client's": func(ctx context.Context, c *forward.Conn, request *batch.Frame) error {
			return c.Invoke(ctx, method, request, &batch.Frame{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ended, served := make(chan struct{}), make(chan error, 1)
			go func() { served <- refuseTwice(l, ended) }()
			c, err := forward.Dial(l.Addr().String(), forward.Options{DialOptions: []grpc.DialOption{grpc.WithStatsHandler(&second{ended: ended})}})
			require.NoError(t, err)
			p := &counted{}
			err = ask(t.Context(), c, &batch.Frame{Data: mem.BufferSlice{mem.NewBuffer(p.Get(5000), p)}})
			require.True(t, forward.Lost(err), "%v", err)
			require.NoError(t, c.Close())
			require.NoError(t, l.Close())
			require.NoError(t, <-served)
			require.Zero(t, p.out.Load())
		})
	}
}

// refuseTwice serves one connection, and refuses its calls: the first one once it is there, the second one at once. It closes ended once the client knows of the second refusal.
func refuseTwice(l net.Listener, ended chan<- struct{}) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return err
	}
	f := http2.NewFramer(conn, conn)
	calls := 0
	for err = f.WriteSettings(); err == nil; {
		frame, gone := f.ReadFrame()
		if gone != nil {
			return nil //nolint:nilerr // the client has closed the connection
		}
		switch v := frame.(type) {
		case *http2.SettingsFrame:
			if !v.IsAck() {
				err = f.WriteSettingsAck()
			}
		case *http2.DataFrame:
			if calls == 1 && v.StreamEnded() {
				err = f.WriteRSTStream(v.StreamID, http2.ErrCodeRefusedStream)
			}
		case *http2.HeadersFrame:
			if calls++; calls == 2 {
				if err = f.WriteRSTStream(v.StreamID, http2.ErrCodeRefusedStream); err == nil {
					err = f.WritePing(false, [8]byte{1})
				}
			}
		case *http2.PingFrame:
			switch {
			case !v.IsAck():
				err = f.WritePing(true, v.Data)
			case v.Data == [8]byte{1}:
				close(ended)
			}
		}
	}
	return err
}
