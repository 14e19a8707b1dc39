// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Server is the gRPC front. Make one with New. ModelInfer is served by package wire, and everything else, on the same connections, by grpc-go.
type Server struct {
	grpc *grpc.Server
	wire *wire.Server // nil: grpc-go serves everything

	inner   sync.Once
	running sync.WaitGroup // grpc-go behind wire
}

// Serve serves a listener until the server is stopped, which closes it. It returns nil then.
func (s *Server) Serve(l net.Listener) error {
	if s.wire == nil {
		return s.grpc.Serve(l)
	}
	s.inner.Do(func() {
		s.running.Go(func() { _ = s.grpc.Serve(s.wire.Inner()) }) // it ends when it is stopped
	})
	if err := s.wire.Serve(l); !errors.Is(err, wire.ErrStopped) {
		return err
	}
	return nil
}

// Leave accepts no more calls, and sends clients elsewhere (GOAWAY), who receive that before whatever is answered after it returns. It does not wait. Where
// grpc-go serves everything it does nothing: grpc-go does the same only while it waits.
func (s *Server) Leave() {
	if s.wire != nil {
		s.wire.Leave()
	}
}

// GracefulStop is Leave, and waits until every call has ended.
func (s *Server) GracefulStop() {
	if s.wire != nil {
		s.wire.GracefulStop()
	}
	s.grpc.GracefulStop()
	s.running.Wait()
}

// Stop ends all calls, and waits for their handlers.
func (s *Server) Stop() {
	if s.wire != nil {
		s.wire.Stop()
	}
	s.grpc.Stop()
	s.running.Wait()
}
