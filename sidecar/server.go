// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/grpc"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	ingressgrpc "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	ingresshttp "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/metrics"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// Bounds of a stop, after the drain that conch.yaml bounds.
const (
	stopServers = 20 * time.Second
	stopFronts  = 2 * time.Second
	// lockWait is how long an earlier conch may take to let go of the state.
	lockWait = time.Second
)

// serverOptions are what newServer needs.
type serverOptions struct {
	config  *config.Config
	version control.Version
	// policies is the program beside which conch-policies lies.
	policies string
	log      *slog.Logger
}

// server is conch put together: the request way (fronts, dispatcher), the plan
// way (control and its parts), and what both report to.
type server struct {
	config  *config.Config
	log     *slog.Logger
	control *control.Control

	dispatcher *dispatch.Dispatcher
	applier    *apply.Applier
	// servers are nil unless others run them.
	servers   *servers
	grpc      *grpc.Server
	http      *http.Server
	operators []*http.Server

	// listeners by the name of their key in conch.yaml; a door that is off has
	// none.
	listeners map[string]net.Listener
	// undo releases what was opened, last first.
	undo []func() error
}

// newServer opens everything and starts nothing. What it opened before a failure
// is closed again.
func newServer(ctx context.Context, o serverOptions) (s *server, err error) {
	s = &server{config: o.config, log: o.log, listeners: map[string]net.Listener{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
			s = nil
		}
	}()
	if err := os.MkdirAll(o.config.State, 0o700); err != nil {
		return s, fmt.Errorf("state directory: %w; name another with state in conch.yaml or --state", err)
	}
	db, err := s.open(filepath.Join(o.config.State, "conch.db"))
	if err != nil {
		return s, err
	}
	store, err := repo.Open(filepath.Join(o.config.State, "repository"), repo.Options{Emulated: o.config.Driver.Kind == config.DriverEmbedded})
	if err != nil {
		return s, err
	}
	s.later(store.Close)

	registry := prometheus.NewRegistry()
	recorder, err := observe.New(registry)
	if err != nil {
		return s, err
	}
	planMetrics, err := observe.NewPlanMetrics(registry)
	if err != nil {
		return s, err
	}
	stubs := watchStubs(control.Observer(recorder, time.Now),
		func(partition, reason string) error { return s.applier.Restart(partition, reason) }, o.log)
	s.later(stubs.close)
	s.dispatcher = dispatch.New(dispatch.Options{
		Observer: stubs, Logger: o.log.With("part", "dispatch"),
		MaxQueuedRequests: o.config.Limits.QueueRequests, MaxQueuedBytes: int64(o.config.Limits.QueueBytes),
	})
	s.later(s.dispatcher.Close)
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newQueues(s.dispatcher),
	} {
		if err := registry.Register(c); err != nil {
			return s, err
		}
	}

	daemon := mps.Detect(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), nil)
	node, err := machine(o.config, daemon, o.log)
	if err != nil {
		return s, err
	}
	partitions, err := s.newDriver(node, store, daemon)
	if err != nil {
		return s, err
	}
	s.later(partitions.Close)
	files := apply.Repository(store)
	var others control.Attached
	if s.servers != nil {
		others = s.servers.catalogue
		if s.servers.files != nil {
			files = s.servers.files
		}
	}
	s.control, err = control.New(control.Options{
		Config: o.config, Nodes: []*policy.Node{node}, Repository: store, Attached: others, Requests: s.dispatcher, Recorder: recorder,
		Metrics: planMetrics, DB: db, Logger: o.log.With("part", "control"), Version: o.version,
		CheckDispatch: func(d *policy.Dispatch) error {
			return checkDiscipline(d.GetDiscipline(), d.GetParameters(), d.GetDropPolicy())
		},
		Policies: func(h control.Hooks) (control.Policies, error) { return s.newHost(o, h), nil },
		Applier: func(h control.Hooks) (control.Applier, error) {
			var err error
			s.applier, err = apply.New(apply.Options{
				Dir: filepath.Join(o.config.State, "partitions"), DB: db, Driver: partitions, Repository: files, Router: s.dispatcher,
				Recorder: control.Samples(recorder), MPS: daemon, Logger: o.log.With("part", "apply"), OnStep: h.StepDone,
				OnPartition: func(e driver.Event) { h.PartitionChanged(e.Partition, e.Up, changed(e)) },
			})
			return s.applier, err
		},
	})
	if err != nil {
		return s, err
	}
	if s.servers != nil {
		s.servers.driver.Watch(s.control.ServersChanged)
	}
	return s, s.openFronts(ctx, registry)
}

// changed says why a partition's server is down, or what is amiss since it is
// back.
func changed(e driver.Event) string {
	switch {
	case !e.Up:
		return e.Reason
	case len(e.Missing) > 0:
		return "without " + strings.Join(e.Missing, ", ") + ", which would not load again"
	default:
		return ""
	}
}

// open opens the state file, which only one conch may have.
func (s *server) open(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait})
	if err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			return nil, fmt.Errorf("state %s is in use by another conch; stop that, or name another directory with --state", filepath.Dir(path))
		}
		return nil, fmt.Errorf("state %s: %w", path, err)
	}
	s.later(db.Close)
	return db, nil
}

func (s *server) newDriver(node *policy.Node, store *repo.Store, daemon mps.Daemon) (driver.Driver, error) {
	d, log := s.config.Driver, s.log.With("part", "driver")
	switch d.Kind {
	case config.DriverAttach:
		var err error
		if s.servers, err = attach(s.config, node, store, s.log); err != nil {
			return nil, err
		}
		return s.servers.driver, nil
	case config.DriverEmbedded:
		return driver.NewEmbedded(driver.EmbeddedOptions{Stretch: d.Stretch, Logger: log}), nil
	}
	return driver.NewProcesses(driver.ProcessOptions{
		Server: d.TritonServer, BackendDir: d.BackendDirectory, Arguments: d.Arguments, Environment: d.Environment,
		Dir: filepath.Join(s.config.State, "servers"), Stretch: d.Stretch, MPS: daemon, Health: health(s.config), Logger: log,
	})
}

func (s *server) newHost(o serverOptions, h control.Hooks) *policyhost.Host {
	own := o.config.Policy
	third := map[string]policyhost.Executable{}
	if own.Executable != "" {
		third[own.Name] = policyhost.Executable{Path: own.Executable, SHA256: own.Checksum}
	}
	host := policyhost.New(policyhost.Options{
		Builtins: policyhost.Beside(o.policies), Policies: third, Check: h.Check, OnEvent: h.PolicyEvent,
		Logger: o.log.With("part", "policyhost"), Budget: own.Deadline.Std(),
	})
	s.later(host.Close)
	return host
}

// openFronts binds every address and makes the servers behind them.
func (s *server) openFronts(ctx context.Context, registry *prometheus.Registry) error {
	table := routes{s.dispatcher, s.control.Names}
	orders := aggregate.Repository(loader{s.control})
	if s.servers != nil {
		orders = attachedLoader{orders, s.control, s.servers.driver}
	}
	one := aggregate.New(aggregate.Options{Partitions: table, Models: table, Counts: table, Repository: orders})
	s.later(func() error { one.Close(); return nil })
	limit := int(min(uint64(s.config.Limits.MessageBytes), math.MaxInt32))
	s.grpc = ingressgrpc.New(ingressgrpc.Options{
		Inferer: s.dispatcher, Aggregator: one,
		ServerOptions: []grpc.ServerOption{grpc.MaxRecvMsgSize(limit), grpc.MaxSendMsgSize(math.MaxInt32)},
	})
	front := ingresshttp.New(ingresshttp.Options{
		Inferer: lender{s.dispatcher}, Catalog: one, Picker: table, Endpoints: one, Aggregator: one,
		MaxBodyBytes: int64(limit), Logger: s.log.With("part", "http"),
	})
	s.later(func() error { front.Close(); return nil })
	s.http = s.newHTTP(context.WithoutCancel(ctx), front)

	scrape, err := metrics.New(metrics.Options{Partitions: table, Own: registry, Registerer: registry, Logger: s.log.With("part", "metrics")})
	if err != nil {
		return err
	}
	s.later(func() error { scrape.Close(); return nil })
	operators := admin.NewHandler(admin.Of(s.control), s.log.With("part", "admin"))
	health := http.NewServeMux()
	health.Handle("/metrics", scrape)
	health.Handle("GET /livez", operators)
	health.Handle("GET /readyz", operators)

	for _, door := range []struct {
		key, address string
		listen       func(string) (net.Listener, error)
	}{
		{"grpc", s.config.Listen.GRPC, listenTCP}, {"http", s.config.Listen.HTTP, listenTCP},
		{"metrics", s.config.Listen.Metrics, listenTCP}, {"admin", s.config.Listen.Admin, admin.Listen},
	} {
		if door.address == config.Off {
			continue
		}
		l, err := door.listen(door.address)
		if err != nil {
			return fmt.Errorf("listen.%s: %w; choose another address, or off", door.key, err)
		}
		s.listeners[door.key] = l
		s.later(func() error {
			// The server behind it has closed it, unless nothing ever served.
			if err := l.Close(); !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		})
	}
	s.operators = []*http.Server{s.newHTTP(ctx, health), s.newHTTP(ctx, operators)}
	return nil
}

func listenTCP(address string) (net.Listener, error) {
	var l net.ListenConfig
	// Binding a socket does not wait, so there is nothing to cancel.
	return l.Listen(context.Background(), "tcp", address)
}

// newHTTP makes a server whose requests end with base.
func (s *server) newHTTP(base context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog: slog.NewLogLogger(s.log.With("part", "http").Handler(), slog.LevelDebug),
	}
}

// run serves until ctx ends or a part fails, then drains and stops everything.
func (s *server) run(ctx context.Context) error {
	attributes := make([]any, 0, 2*len(s.listeners))
	for _, key := range []string{"grpc", "http", "metrics", "admin"} {
		if l := s.listeners[key]; l != nil {
			attributes = append(attributes, key, l.Addr().String())
		}
	}
	s.log.Info("conch listens", attributes...)

	planning, stopPlanning := context.WithCancel(ctx)
	defer stopPlanning()
	failed := make(chan error, 8)
	var planner, fronts sync.WaitGroup
	planner.Go(func() {
		if err := s.control.Run(planning); err != nil {
			failed <- err
		}
	})
	serve := func(key string, serve func(net.Listener) error) {
		l := s.listeners[key]
		if l == nil {
			return
		}
		fronts.Go(func() {
			if err := serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				failed <- fmt.Errorf("listen.%s: %w", key, err)
			}
		})
	}
	serve("grpc", func(l net.Listener) error { return s.grpc.Serve(ingressgrpc.Listen(l)) })
	serve("http", s.http.Serve)
	serve("metrics", s.operators[0].Serve)
	serve("admin", s.operators[1].Serve)

	var cause error
	select {
	case <-ctx.Done():
		s.log.Info("stopping: accepted requests are finished", "at_most", s.config.Limits.Drain.String())
	case cause = <-failed:
	}
	stopPlanning()
	planner.Wait()
	s.stop()
	fronts.Wait()
	return errors.Join(cause, s.release())
}

// stop ends the request way: no new requests, then the accepted ones are
// answered, then the fronts close, then the Triton processes end.
func (s *server) stop() {
	drain, cancel := context.WithTimeout(context.Background(), s.config.Limits.Drain.Std())
	if err := s.dispatcher.Drain(drain); err != nil {
		s.log.Warn("not every accepted request was answered in time", "error", err)
	}
	cancel()
	closing, cancel := context.WithTimeout(context.Background(), stopFronts)
	defer cancel()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	if err := s.http.Shutdown(closing); err != nil {
		s.log.Warn("HTTP callers are cut off", "error", errors.Join(err, s.http.Close()))
	}
	select {
	case <-graceful:
	case <-closing.Done():
		s.grpc.Stop()
		<-graceful
	}
	ending, cancel := context.WithTimeout(context.Background(), stopServers)
	defer cancel()
	if err := s.applier.Close(ending); err != nil {
		s.log.Warn("partitions did not end cleanly", "error", err)
	}
	for _, o := range s.operators {
		if err := o.Close(); err != nil {
			s.log.Debug("an operators' server did not close cleanly", "error", err)
		}
	}
}

// reload reads the configuration again: all of it comes into force, or nothing.
func (s *server) reload(ctx context.Context, load func() (*config.Config, error)) {
	next, err := load()
	if err == nil {
		err = s.control.Reload(ctx, next)
	}
	if err != nil {
		s.log.Error("the configuration was not reloaded", "error", err)
	}
}

func (s *server) later(undo func() error) { s.undo = append(s.undo, undo) }

// release closes what newServer opened, last first.
func (s *server) release() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}
