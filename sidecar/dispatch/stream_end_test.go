// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// heldStream is a caller's side of a stream. The caller takes no messages until it is released.
type heldStream struct {
	grpc.ServerStream
	ctx     context.Context
	asks    chan *tritonpb.ModelInferRequest
	sending chan struct{} // signals that a message is being sent
	letGo   chan struct{}
}

func (s *heldStream) Context() context.Context { return s.ctx }

func (s *heldStream) SetHeader(metadata.MD) error { return nil }

func (s *heldStream) RecvMsg(m any) error {
	r, ok := <-s.asks
	if !ok {
		return io.EOF
	}
	wire, err := proto.Marshal(r)
	m.(*batch.Frame).Data = mem.BufferSlice{mem.SliceBuffer(wire)}
	return err
}

func (s *heldStream) SendMsg(any) error {
	s.sending <- struct{}{}
	<-s.letGo
	return context.Canceled
}

// TestACallerGoesWhileARefusalIsSent: refusals that a stream sends, and requests that it reads, are no longer counted once the call is over, and
// do no harm.
func TestACallerGoesWhileARefusalIsSent(t *testing.T) {
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, newTriton(t)))
	ctx, cancel := context.WithCancel(t.Context())
	s := &heldStream{ctx: ctx, asks: make(chan *tritonpb.ModelInferRequest), sending: make(chan struct{}), letGo: make(chan struct{})}
	over := make(chan error)
	go func() { over <- d.InferStream(s) }()
	absent := message("absent", 1, 1)
	absent.ModelName = "absent"
	s.asks <- absent
	<-s.sending
	cancel()
	requireCode(t, codes.Canceled, <-over)
	close(s.letGo)
	s.asks <- absent
	s.asks <- message("m", 1, 1)
	close(s.asks) // as gRPC ends the reading of a call that is over
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
}
