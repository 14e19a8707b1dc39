// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/internal/reuseport"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	ingressgrpc "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	ingresshttp "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/metrics"
	"github.com/conch-serving/conch/sidecar/watch"
)

// Bounds of HTTP that Triton's clients stay far below.
const (
	headerTimeout = 10 * time.Second
	// idleTimeout ends connections of operators and scrapers that ask nothing more: what leaks its connections costs conch no descriptors.
	idleTimeout = 5 * time.Minute
	// maxHeader is the most that the lines before a body may have; net/http adds
	// 4 KiB.
	maxHeader = 60 << 10
	// maxDescriptors is the part of the process's file descriptors that clients'
	// connections may take; the rest is for files and partitions.
	maxDescriptors = 0.8
)

// fronts are conch's doors: clients come in by gRPC and HTTP, operators by
// metrics and admin.
type fronts struct {
	grpc      *grpc.Server
	http      *http.Server
	operators []*http.Server
	watchers  *watch.Hub // of conch's state
	gate      *gate.Gate

	// listeners by the name of their key in conch.yaml. A door that is off has none,
	// and one that is shared with another conch has none before it is opened.
	listeners map[string]net.Listener
	gated     map[string]*gate.Listener
	tls       map[string]*tls.Config // of HTTP doors, nil in the clear
	// opened is closed once the shared doors are open, leaving says that they are
	// handed over.
	opened  chan struct{}
	leaving atomic.Bool
	mu      sync.Mutex // guards listeners and gated while the doors open
}

// openFronts makes the servers and binds every address that is not shared.
func (s *server) openFronts(ctx context.Context) error {
	limits := s.config.Limits
	s.gate = gate.New(gate.Options{
		Requests: limits.QueueRequests, Bytes: int64(limits.QueueBytes), Connections: s.connections, Stall: limits.Stall.Std(),
		Held:   func() int64 { _, bytes := s.dispatcher.UnderWay(); return bytes },
		Logger: s.log.With("part", "gate"),
	})
	s.later(func() error { s.gate.Close(); return nil })
	if err := s.registry.Register(newQueues(s.dispatcher, s.gate)); err != nil {
		return err
	}
	if err := s.secure(); err != nil {
		return err
	}
	table := routes{s.dispatcher, s.control, s.reconciler}
	orders := aggregate.Repository(loader{s.control})
	if s.servers != nil {
		orders = attachedLoader{orders, s.control, s.servers.driver}
	}
	orders = modelControl{orders, s.config.ModelControl.Clients}
	options := aggregate.Options{
		Partitions: table, Models: table, Counts: table, Repository: orders, Credentials: s.partitions,
	}
	if sameMemory(s.config) {
		options.Regions = s.regions // else it stays empty
	}
	s.aggregator = aggregate.New(options)
	s.later(func() error { s.aggregator.Close(); return nil })
	limit := int(min(uint64(limits.MessageBytes), math.MaxInt32))
	front := ingresshttp.New(ingresshttp.Options{
		Inferer: lender{s.dispatcher}, Catalog: s.aggregator, Picker: table, Endpoints: s.aggregator, Aggregator: s.aggregator, Refused: s.dispatcher.Refused, Remember: s.aggregator.Remember,
		MaxBodyBytes: int64(limit), Patience: limits.Stall.Std(), Leaving: s.leaving.Load, Logger: s.log.With("part", "http"),
		Pool: &s.buffers, Spans: s.tracer,
	})
	s.later(func() error { front.Close(); return nil })
	s.http = s.newHTTP(context.WithoutCancel(ctx), front)
	s.http.MaxHeaderBytes = maxHeader
	s.http.ReadHeaderTimeout = min(headerTimeout, limits.Stall.Std())
	// Triton ends no idle connection; the gate ends the idlest where there are too
	// many.
	s.http.ReadTimeout, s.http.IdleTimeout = limits.Stall.Std(), -1
	s.http.ConnContext = gate.WithConn
	s.grpc = ingressgrpc.New(ingressgrpc.Options{
		Inferer: s.dispatcher, Aggregator: s.aggregator, Refused: s.dispatcher.Refused, Credentials: grpcCredentials(s.tls["grpc"]),
		ServerOptions: []grpc.ServerOption{grpc.MaxRecvMsgSize(limit), grpc.MaxSendMsgSize(math.MaxInt32)},
		Pool:          &s.buffers, Logger: s.log.With("part", "grpc"),
	})

	scrape, err := metrics.New(metrics.Options{Partitions: table, Requests: table, Own: s.registry, Registerer: s.registry, Logger: s.log.With("part", "metrics")})
	if err != nil {
		return err
	}
	s.later(func() error { scrape.Close(); return nil })
	conch := doors{admin.Of(s.control, s.traces, s.traffic()), s}
	s.watchers = s.newWatchers(conch)
	operators := admin.NewHandler(conch, s.watchers, s.log.With("part", "admin"))
	health := http.NewServeMux()
	health.Handle("/metrics", scrape)
	health.Handle("GET /livez", operators)
	health.Handle("GET /readyz", operators)
	door := s.newHTTP(ctx, operators)
	door.ConnContext = admin.WithPeer
	if file := s.config.Listen.AdminToken; file != "" {
		token, err := admin.NewToken(file)
		if err != nil {
			return err
		}
		door.Handler = token.Guard(operators, s.log.With("part", "admin"))
	}
	s.operators = []*http.Server{s.newHTTP(ctx, health), door}
	return s.bind()
}

// maxConnections is limits.connections, or what the process may have.
func (s *server) maxConnections() int {
	n := s.config.Limits.Connections
	if most := int(maxDescriptors * float64(descriptors())); n > most {
		s.log.Info("fewer connections than limits.connections: the process may not open as many files", "connections", most, "limit", n)
		return most
	}
	return n
}

// secure reads the certificates of the doors that have one.
func (s *server) secure() (err error) {
	t, log := s.config.Listen.TLS, s.log.With("part", "tls")
	s.tls = map[string]*tls.Config{}
	if s.tls["grpc"], err = serverTLS(t, log, "h2"); err != nil {
		return err
	}
	if s.tls["http"], err = serverTLS(t, log, "http/1.1"); err != nil {
		return err
	}
	if t.Metrics {
		s.tls["metrics"] = s.tls["http"]
	}
	if s.tls["admin"], err = adminTLS(s.config.Listen.AdminTLS, log); err != nil {
		return err
	}
	return nil
}

func grpcCredentials(c *tls.Config) credentials.TransportCredentials {
	if c == nil {
		return nil
	}
	return credentials.NewTLS(c)
}

// shared reports whether another conch may have the door's address, too.
func (s *server) shared(key string) bool {
	return s.config.Listen.ReusePort && (key == "grpc" || key == "http")
}

// addresses of the doors that are not off, by key.
func (s *server) addresses() map[string]string {
	all := map[string]string{
		"grpc": s.config.Listen.GRPC, "http": s.config.Listen.HTTP, "metrics": s.config.Listen.Metrics, "admin": s.config.Listen.Admin,
	}
	for key, address := range all {
		if address == config.Off {
			delete(all, key)
		}
	}
	return all
}

// bind opens every address; those that are shared are only tried.
func (s *server) bind() error {
	addresses := s.addresses()
	for _, key := range []string{"grpc", "http", "metrics", "admin"} {
		address, on := addresses[key]
		if !on {
			continue
		}
		var l net.Listener
		var err error
		switch {
		case s.shared(key):
			err = reuseport.Check(address)
		case key == "admin":
			l, err = admin.Listen(address)
		default:
			l, err = listenTCP(address)
		}
		if err != nil {
			return fmt.Errorf("listen.%s: %w; choose another address, or off", key, err)
		}
		if l != nil {
			s.opens(key, l)
		}
	}
	return nil
}

// opens takes a listener in.
func (s *server) opens(key string, l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners[key] = l
	switch key {
	case "grpc":
		s.gated[key] = s.gate.Listener(ingressgrpc.Listen(l), true)
	case "http":
		s.gated[key] = s.gate.Listener(l, false)
	}
	s.later(func() error {
		// The server behind it has closed it, unless nothing ever served.
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
}

func listenTCP(address string) (net.Listener, error) {
	var l net.ListenConfig
	// Binding a socket does not wait, so there is nothing to cancel.
	return l.Listen(context.Background(), "tcp", address)
}

// newHTTP makes a server whose requests end with base.
func (s *server) newHTTP(base context.Context, h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, Protocols: protocols,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(s.log.With("part", "http").Handler(), slog.LevelDebug),
	}
}

// serveFronts serves every door; a door that ends before its time is sent to
// failed. Shared doors open once conch is ready, so that no client comes before.
func (s *server) serveFronts(ctx context.Context, failed chan<- error, running *sync.WaitGroup) {
	if s.config.Listen.ReusePort {
		running.Go(func() {
			if !s.awaitReady(ctx) {
				return
			}
			addresses := s.addresses()
			for _, key := range []string{"grpc", "http"} {
				if addresses[key] == "" {
					continue
				}
				l, err := reuseport.Listen(ctx, addresses[key])
				if err != nil {
					failed <- fmt.Errorf("listen.%s: %w", key, err)
					return
				}
				s.opens(key, l)
				s.serve(key, failed, running)
			}
			close(s.opened)
			s.log.Info("conch takes over shared addresses", "grpc", addresses["grpc"], "http", addresses["http"])
		})
	} else {
		close(s.opened)
	}
	for _, key := range []string{"grpc", "http", "metrics", "admin"} {
		s.serve(key, failed, running)
	}
}

// serve serves one door, if it is open.
func (s *server) serve(key string, failed chan<- error, running *sync.WaitGroup) {
	s.mu.Lock()
	l := s.listeners[key]
	if g := s.gated[key]; g != nil {
		l = g
	}
	s.mu.Unlock()
	if l == nil {
		return
	}
	if c := s.tls[key]; c != nil && key != "grpc" { // gRPC does its own handshakes
		l = tls.NewListener(l, c)
	}
	serve := map[string]func(net.Listener) error{
		"grpc": s.grpc.Serve, "http": s.http.Serve, "metrics": s.operators[0].Serve, "admin": s.operators[1].Serve,
	}[key]
	running.Go(func() {
		err := serve(l)
		switch {
		case err == nil, errors.Is(err, http.ErrServerClosed), errors.Is(err, grpc.ErrServerStopped):
		case s.leaving.Load() && errors.Is(err, net.ErrClosed): // closed by handOver
		default:
			failed <- fmt.Errorf("listen.%s: %w", key, err)
		}
	})
}
