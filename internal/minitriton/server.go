// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"errors"
)

// Server is one running minitriton: the server of one partition.
type Server struct {
	opts Options
	end  Endpoint
	done chan struct{}
}

var errUnfinished = errors.New("minitriton: being written")

// New checks the options and prepares a server. Nothing is loaded or served before Start.
func New(o Options) (*Server, error) { return &Server{opts: o, done: make(chan struct{})}, nil }

// Start loads the models named by the options and serves on the listeners until Shutdown or Close, which close them. It returns once
// the server answers. Like Triton with --exit-on-error=false it starts even if a model fails to load: see the repository index.
func (s *Server) Start(ctx context.Context, l Listeners) error { return errUnfinished }

// Endpoint says where the server is reached. It is valid after Start.
func (s *Server) Endpoint() Endpoint { return s.end }

// Load loads or reloads a model as the repository API does, and returns once it is ready or has failed.
func (s *Server) Load(ctx context.Context, model string) error { return errUnfinished }

// Unload unloads a model as the repository API does: requests it has accepted are still served.
func (s *Server) Unload(ctx context.Context, model string) error { return errUnfinished }

// Shutdown stops as Triton does on SIGTERM: no new work, accepted requests are answered, then the listeners close. When the context
// ends first the rest is cut off as Close does, and the context's error is returned.
func (s *Server) Shutdown(ctx context.Context) error { return errUnfinished }

// Close stops as a killed Triton does: connections break, requests under way get no answer. It returns once every goroutine has ended.
func (s *Server) Close() error { return errUnfinished }

// Done is closed when the server has stopped.
func (s *Server) Done() <-chan struct{} { return s.done }
