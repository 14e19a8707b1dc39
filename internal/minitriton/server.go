// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"

	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/clock"
)

// Name and Version are what the server metadata say: minitriton answers as this version of Triton.
const (
	Name    = "triton"
	Version = "2.51.0"
)

// extensions are those of the real server that minitriton answers.
var extensions = [...]string{
	"classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration",
	"system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters", "statistics", "trace", "logging",
}

// Server is one running minitriton: the server of one partition.
type Server struct {
	opts     Options
	repo     *repository
	settings settings
	regions  regions

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	done      chan struct{}

	mu      sync.Mutex
	started bool
	stopped bool
	end     Endpoint
	grpc    *grpc.Server
	http    []*http.Server
	serving sync.WaitGroup
}

// New checks the options and prepares a server. Nothing is loaded or served before Start.
func New(o Options) (*Server, error) {
	info, err := os.Stat(o.Repository)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory")
	}
	if err != nil {
		return nil, fmt.Errorf("minitriton: model repository %q: %w", o.Repository, err)
	}
	p := &o.Partition
	if p.Share == 0 {
		p.Share = 100
	}
	if p.Share < 1 || p.Share > 100 {
		return nil, fmt.Errorf("minitriton: share %d of partition %q must be 1 to 100", p.Share, p.ID)
	}
	if o.Stretch < 0 {
		return nil, fmt.Errorf("minitriton: stretch %g must be positive", o.Stretch)
	}
	if o.Stretch == 0 {
		o.Stretch = 1
	}
	if p.GPU == nil {
		p.GPU = NewGPU("GPU-0")
	}
	if p.ID == "" {
		p.ID = p.GPU.ID()
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Rand == nil {
		o.Rand = rand.NewPCG(1, 2)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opts: o, closing: make(chan struct{}), done: make(chan struct{})}
	s.settings.init()
	place := &place{gpu: p.GPU, partition: p.GPU.partition(p.ID), share: float64(p.Share), stretch: o.Stretch,
		clock: o.Clock, closing: s.closing, rng: rand.New(o.Rand)}
	s.repo = newRepository(o.Repository, place, o.Control == ControlExplicit, o.Logger.With("partition", p.ID))
	return s, nil
}

// Start loads the models named by the options and serves on the listeners until Shutdown or Close, which close them. Like Triton with
// --exit-on-error=false it starts even if a model fails to load: the repository index says why. On error the listeners are closed.
func (s *Server) Start(ctx context.Context, l Listeners) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.stopped {
		l.Close()
		return errors.New("minitriton: a server can be started once")
	}
	names := s.opts.Load
	if s.opts.Control == ControlNone {
		all, err := s.repo.names()
		if err != nil {
			l.Close()
			return fmt.Errorf("minitriton: read model repository: %w", err)
		}
		names = all
	}
	for _, name := range names {
		if err := s.repo.loadNamed(ctx, name, loadRequest{}); err != nil {
			s.opts.Logger.Error("load at start", "model", name, "error", err)
		}
	}
	s.started, s.end = true, l.endpoint()
	if l.GRPC != nil {
		s.grpc = newGRPCServer(s)
		s.serve("gRPC", func() error { return s.grpc.Serve(l.GRPC) })
	}
	s.serveHTTP("HTTP", l.HTTP, &httpFront{server: s})
	if l.Metrics != nil {
		s.serveHTTP("metrics", l.Metrics, metricsHandler(s.repo, s.opts.Logger))
	}
	return nil
}

func (s *Server) serve(what string, f func() error) {
	s.serving.Go(func() {
		if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
			s.opts.Logger.Error("serving ended", "protocol", what, "error", err)
		}
	})
}

func (s *Server) serveHTTP(what string, l net.Listener, h http.Handler) {
	if l == nil {
		return
	}
	srv := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelWarn)}
	s.http = append(s.http, srv)
	s.serve(what, func() error { return srv.Serve(l) })
}

// Endpoint says where the server is reached. It is valid after Start.
func (s *Server) Endpoint() Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Load loads or reloads a model as the repository API does, and returns once it is ready or has failed. The error is an *Error.
func (s *Server) Load(ctx context.Context, model string) error {
	if err := s.repo.load(ctx, model, loadRequest{}); err != nil {
		return err
	}
	return nil
}

// Unload unloads a model as the repository API does: it returns at once and requests already accepted are still answered.
func (s *Server) Unload(ctx context.Context, model string) error {
	if err := s.repo.unload(ctx, model, false); err != nil {
		return err
	}
	return nil
}

// Shutdown stops as Triton does on SIGTERM: HTTP closes its listener, new work is refused, accepted requests are answered, then gRPC
// closes. When the context ends first the rest is cut off as Close does, and the context's error is returned.
func (s *Server) Shutdown(ctx context.Context) error {
	s.repo.exit()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.repo.wait()
		s.mu.Lock()
		g, hs := s.grpc, s.http
		s.mu.Unlock()
		for _, h := range hs {
			if h.Shutdown(ctx) != nil {
				return
			}
		}
		if g != nil {
			g.GracefulStop()
		}
	}()
	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = s.Close() // always nil
	<-drained
	return err
}

// Close stops as a killed Triton does: connections break and requests under way get no answer. It returns once every goroutine of the
// server has ended; an execution in the middle of its emulated time is cut short. The error is always nil.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.stopped = true
		g, hs := s.grpc, s.http
		s.mu.Unlock()
		for _, h := range hs {
			_ = h.Close() // closes the listener; its error changes nothing
		}
		if g != nil {
			g.Stop()
		}
		close(s.closing) // not before connections are broken: what is cut short would be answered
		s.repo.exit()
		s.repo.wait()
		s.serving.Wait()
		s.regions.drop()
		close(s.done)
	})
	<-s.done
	return nil
}

// Done is closed when the server has stopped.
func (s *Server) Done() <-chan struct{} { return s.done }

// infer runs one request of a model that answers once, and waits for the answer or for the caller to go. The error is a refusal before
// the model ran, or the end of the caller's context; the model's own error is in the response.
func (s *Server) infer(m *model, name, version string, r *request) (*response, error) {
	answer := make(chan *response, 1)
	r.respond = func(resp *response, _ bool) { answer <- resp }
	if err := s.repo.submit(m, name, version, r); err != nil {
		return nil, err
	}
	select {
	case resp := <-answer:
		return resp, nil
	case <-r.ctx.Done():
		return nil, r.ctx.Err()
	}
}
