// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package fronts is clients' doors to conch: Triton's gRPC and HTTP, behind a gate
// that bounds what clients can hold. Its end is the drain of the request path, and
// its beginning may be the hand-over from another conch on the same addresses.
package fronts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/internal/reuseport"
	"github.com/conch-serving/conch/sidecar/admin/api"
	keyring "github.com/conch-serving/conch/sidecar/component/credentials"
	"github.com/conch-serving/conch/sidecar/component/doors"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	ingressgrpc "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	ingresshttp "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// maxHeader is the most that the lines before a body may have; net/http adds 4 KiB.
const maxHeader = 60 << 10

// Options of New.
type Options struct {
	Config     *config.Config
	Dispatcher *dispatch.Dispatcher
	// Aggregate answers for all partitions, Picker says where requests by HTTP go that
	// are not queued.
	Aggregate *aggregate.Aggregate
	Picker    ingresshttp.Picker
	// Ready reports whether conch could serve; shared addresses are opened then, and Doors asked.
	Ready func() bool
	// Doors gives an address's listener, grpc or http, on which another part of this conch has served until then; nil where the door is off. Doors itself is nil
	// where New binds the addresses.
	Doors func(key string) net.Listener
	// Late: Run binds the addresses, and not New, since another conch may serve there until then.
	Late bool
	// Connections bounds the open connections of clients.
	Connections int
	// Buffers are what requests are received into.
	Buffers  *buffers.Pool
	Spans    *spans.Tracer
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Fronts are the doors of clients.
type Fronts struct {
	o     Options
	grpc  *ingressgrpc.Server
	http  webServer
	proxy *ingresshttp.Handler
	gate  *gate.Gate
	tls   map[string]*tls.Config // by key, nil in the clear

	// doors by their key in conch.yaml. One that is off is not there, and one that is
	// shared with another conch is not there before it is opened.
	mu    sync.Mutex
	doors map[string]door
	// opened is closed once the shared doors are open, leaving says that they are
	// handed over or that conch stops.
	opened  chan struct{}
	leaving atomic.Bool
}

// webServer is net/http's Server, or one that answers requests inside its connections.
type webServer interface {
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// door is an open address.
type door struct {
	net.Listener
	gated *gate.Listener
}

// keys of conch.yaml below listen.
var keys = [...]string{"grpc", "http"}

// New makes the servers and binds every address that is not shared; those are only
// tried. Ctx does not end requests.
func New(ctx context.Context, o Options) (f *Fronts, err error) {
	limits := o.Config.Limits
	f = &Fronts{o: o, doors: map[string]door{}, tls: map[string]*tls.Config{}, opened: make(chan struct{})}
	if err := f.secure(); err != nil {
		return nil, err
	}
	f.gate = gate.New(gate.Options{
		Requests: limits.QueueRequests, Bytes: int64(limits.QueueBytes), Connections: o.Connections, Stall: limits.Stall.Std(),
		Held:   func() int64 { _, bytes := o.Dispatcher.UnderWay(); return bytes },
		Logger: o.Log.With("part", "gate"),
	})
	limit := int(min(uint64(limits.MessageBytes), math.MaxInt32))
	f.proxy = ingresshttp.New(ingresshttp.Options{
		Inferer: o.Dispatcher, Catalog: o.Aggregate, Picker: o.Picker, Endpoints: o.Aggregate, Aggregator: o.Aggregate, Refused: o.Dispatcher.Refused, Remember: o.Aggregate.Remember,
		MaxBodyBytes: int64(limit), Patience: limits.Stall.Std(), Leaving: f.leaving.Load, Logger: o.Log.With("part", "http"),
		Pool: o.Buffers, Spans: o.Spans,
	})
	web := doors.HTTP(context.WithoutCancel(ctx), f.proxy, o.Log)
	web.MaxHeaderBytes = maxHeader
	web.ReadHeaderTimeout = min(doors.HeaderTimeout, limits.Stall.Std())
	// Triton ends no idle connection; the gate ends the idlest where there are too
	// many.
	web.ReadTimeout, web.IdleTimeout = limits.Stall.Std(), -1
	web.ConnContext = gate.WithConn
	if f.http = web; o.Config.Wire != config.WireGRPC {
		f.http = http1.New(web, ingresshttp.Plain)
	}
	var over credentials.TransportCredentials
	if f.tls["grpc"] != nil {
		over = credentials.NewTLS(f.tls["grpc"])
	}
	f.grpc = ingressgrpc.New(ingressgrpc.Options{
		Inferer: o.Dispatcher, Aggregator: o.Aggregate, Refused: o.Dispatcher.Refused, Credentials: over,
		MaxMessage: limit, GRPC: o.Config.Wire == config.WireGRPC,
		MaxAge: o.Config.Listen.MaxConnectionAge.Std(), Grace: o.Config.Listen.MaxConnectionAgeGrace.Std(),
		Pool: o.Buffers, Logger: o.Log.With("part", "grpc"),
	})
	err = o.Registry.Register(newQueues(o.Dispatcher, f.gate))
	if err == nil && !o.Late {
		err = f.bind()
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// secure reads the certificates.
func (f *Fronts) secure() (err error) {
	t, log := f.o.Config.Listen.TLS, f.o.Log.With("part", "tls")
	if f.tls["grpc"], err = keyring.Server(t, log, "h2"); err != nil {
		return err
	}
	f.tls["http"], err = keyring.Server(t, log, "http/1.1")
	return err
}

// address is what conch.yaml says of a door, or empty where the door is off.
func (f *Fronts) address(key string) string {
	address := map[string]string{"grpc": f.o.Config.Listen.GRPC, "http": f.o.Config.Listen.HTTP}[key]
	if address == config.Off {
		return ""
	}
	return address
}

// bind opens every address; those that are shared are only tried.
func (f *Fronts) bind() error {
	for _, key := range keys {
		address := f.address(key)
		if address == "" || f.o.Doors != nil {
			continue
		}
		if f.o.Config.Listen.ReusePort {
			if err := reuseport.Check(address); err != nil {
				return doors.Error(key, err)
			}
			continue
		}
		l, err := doors.Listen(address)
		if err != nil {
			return doors.Error(key, err)
		}
		f.opens(key, l)
	}
	return nil
}

// opens takes a listener in.
func (f *Fronts) opens(key string, l net.Listener) {
	d := door{Listener: l, gated: f.gate.Listener(l, key == "grpc")}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doors[key] = d
}

// at is an open door, if it is open.
func (f *Fronts) at(key string) (door, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, ok := f.doors[key]
	return d, ok
}

// Address is that of an open door, grpc or http; nil if it is not open.
func (f *Fronts) Address(key string) net.Addr {
	d, ok := f.at(key)
	if !ok {
		return nil
	}
	return d.Addr()
}

// Run implements component.Component: it serves, and drains when ctx has ended.
func (f *Fronts) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return f.close()
	}
	if f.o.Late {
		if err := f.bind(); err != nil {
			return errors.Join(err, f.close())
		}
	}
	var running sync.WaitGroup
	failed := make(chan error, 2*len(keys))
	f.serveAll(ctx, failed, &running)
	var cause error
	select {
	case <-ctx.Done():
	case cause = <-failed:
	}
	f.drain()
	running.Wait()
	return errors.Join(cause, f.close())
}

// serveAll serves every door; a door that ends before its time is sent to
// failed. Shared doors open once conch is ready, so that no client comes before.
func (f *Fronts) serveAll(ctx context.Context, failed chan<- error, running *sync.WaitGroup) {
	if f.o.Doors != nil {
		running.Go(func() {
			if !await(ctx, f.ready(time.Now().Add(takeAnyway))) {
				return
			}
			for _, key := range keys {
				if l := f.o.Doors(key); l != nil {
					f.opens(key, l)
					f.serve(key, failed, running)
				}
			}
			close(f.opened)
		})
		return
	}
	if !f.o.Config.Listen.ReusePort {
		close(f.opened)
		for _, key := range keys {
			f.serve(key, failed, running)
		}
		return
	}
	running.Go(func() {
		if !await(ctx, f.o.Ready) {
			return
		}
		for _, key := range keys {
			address := f.address(key)
			if address == "" {
				continue
			}
			l, err := reuseport.Listen(ctx, address)
			if err != nil {
				failed <- fmt.Errorf("listen.%s: %w", key, err)
				return
			}
			f.opens(key, l)
			f.serve(key, failed, running)
		}
		close(f.opened)
		f.o.Log.Info("conch takes over shared addresses", "grpc", f.address("grpc"), "http", f.address("http"))
	})
}

// takeAnyway is when the doors are taken though conch is not ready, as where a partition does not come up: the others serve. Before there are routes nobody
// serves, and a request would be refused at once that waits, until its deadline, with who has the doors.
const takeAnyway = 20 * time.Second

// ready is Ready until a moment, and after it whether there are routes.
func (f *Fronts) ready(until time.Time) func() bool {
	return func() bool { return f.o.Ready() || time.Now().After(until) && f.o.Dispatcher.Ready() == nil }
}

// serve serves one door, if it is open.
func (f *Fronts) serve(key string, failed chan<- error, running *sync.WaitGroup) {
	d, ok := f.at(key)
	if !ok {
		return
	}
	serve, l := f.grpc.Serve, net.Listener(d.gated) // gRPC does its own handshakes
	if key == "http" {
		serve = f.http.Serve
		if c := f.tls[key]; c != nil {
			l = tls.NewListener(l, c)
		}
	}
	running.Go(func() {
		err := serve(l)
		if f.leaving.Load() && errors.Is(err, net.ErrClosed) {
			return // closed by handOver
		}
		if err := doors.Served(key, err); err != nil {
			failed <- err
		}
	})
}

// drain ends the request way. First clients are sent elsewhere (GOAWAY, Connection:
// close), and nothing new is accepted; what was accepted is finished, within
// limits.drain; then the doors close.
func (f *Fronts) drain() {
	limit, cancel := context.WithTimeout(context.Background(), f.o.Config.Limits.Drain.Std())
	defer cancel()
	if f.o.Config.Listen.ReusePort {
		f.handOver(limit)
	}
	f.leaving.Store(true) // HTTP answers say Connection: close
	f.grpc.Leave()        // GOAWAY
	graceful, quiet := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(graceful)
		f.grpc.GracefulStop() // waits for the calls
	}()
	go func() {
		defer close(quiet)
		if err := f.http.Shutdown(limit); err != nil {
			f.o.Log.Warn("HTTP callers are cut off", "error", errors.Join(err, f.http.Close()))
		}
	}()
	if err := f.o.Dispatcher.Drain(limit); err != nil {
		f.o.Log.Warn("not every accepted request was answered in time", "error", err)
	}
	<-quiet
	select {
	case <-graceful:
	case <-limit.Done():
		f.grpc.Stop()
		<-graceful
	}
}

// close closes what New opened.
func (f *Fronts) close() error {
	var errs []error
	f.mu.Lock()
	for _, d := range f.doors {
		// The server behind it has closed it, unless nothing ever served.
		if err := d.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	f.mu.Unlock()
	f.grpc.Stop() // its workers run from the beginning
	f.proxy.Close()
	f.gate.Close()
	return errors.Join(errs...)
}

// Check is what the doors have to say of conch's readiness, if anything.
func (f *Fronts) Check() (c api.Check, ok bool) {
	if !f.o.Config.Listen.ReusePort && f.o.Doors == nil && !f.leaving.Load() {
		return c, false
	}
	c = api.Check{Name: "doors", OK: true}
	select {
	case <-f.opened:
		if f.leaving.Load() {
			c.OK, c.Reason = false, "draining: accepted requests are finished, and no more are accepted"
		}
	default:
		if f.o.Doors != nil { // there, requests wait
			break
		}
		c.OK, c.Reason = false, "shared addresses open once everything else is ready"
	}
	return c, true
}
