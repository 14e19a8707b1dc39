// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"

	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/calibration"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/merging"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/observe/recent"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
	"github.com/conch-serving/conch/sidecar/record"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

const (
	// stopServers bounds the end of the Triton processes, after the drain that
	// conch.yaml bounds.
	stopServers = 20 * time.Second
	// lockWait is how long an earlier conch may take to unlock the state.
	lockWait = time.Second
)

// serverOptions are what newServer needs.
type serverOptions struct {
	config  *config.Config
	version api.Version
	// policies is the program beside which conch-policies lies.
	policies string
	// launcher confines policies; empty: they are not confined.
	launcher []string
	log      *slog.Logger
}

// server is conch put together: the request way (fronts, dispatcher), the plan
// way (control and its parts), and what both report to.
type server struct {
	config  *config.Config
	log     *slog.Logger
	control *control.Control

	dispatcher *dispatch.Dispatcher
	reconciler *apply.Reconciler
	// evaluations of plans run in a process of their own.
	evaluations *evaluate.Child
	// calibration executes orders to measure, on servers of the scratch driver, which is nil where conch starts none.
	calibration *calibration.Calibration
	groups      *merging.Book
	scratch     driver.Driver
	// recent is what became of requests a short while ago.
	recent *recent.Recorder
	// traces are recorded from the request path while a client asks for one.
	traces *record.Recorder
	// tracer makes the spans of requests; nil while tracing is off.
	tracer *spans.Tracer
	// servers are nil unless others run them.
	servers *servers
	// served is nil unless others run the servers.
	served *served
	// partitions are the credentials of Triton's gRPC; nil is in the clear.
	partitions credentials.TransportCredentials
	// aggregator answers for all partitions.
	aggregator *aggregate.Aggregate
	// regions are the shared memory that clients have registered.
	regions *shm.Regions
	// buffers are what requests and answers are received into.
	buffers buffers.Pool
	// registry has conch's own metrics.
	registry *prometheus.Registry
	// connections bounds the open connections of clients.
	connections int
	fronts

	// leave: the servers of conch's own go on when it stops.
	leave *atomic.Bool

	// undo releases what was opened, last first.
	undo []func() error
}

// newServer opens everything and starts nothing. What it opened before a failure
// is closed again.
func newServer(ctx context.Context, o serverOptions) (s *server, err error) {
	s = &server{config: o.config, log: o.log, leave: &atomic.Bool{}}
	s.listeners, s.gated, s.opened = map[string]net.Listener{}, map[string]*gate.Listener{}, make(chan struct{})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.release())
			s = nil
		}
	}()
	if err := privateState(o.config.State, o.log); err != nil {
		return s, err
	}
	db, err := s.open(filepath.Join(o.config.State, stateFile))
	if err != nil {
		return s, err
	}
	stopped, err := writeRunning(o.config.State)
	if err != nil {
		return s, err
	}
	s.later(stopped)
	store, err := repo.Open(filepath.Join(o.config.State, "repository"), repo.Options{Emulated: o.config.Driver.Kind == config.DriverEmbedded})
	if err != nil {
		return s, err
	}
	s.later(store.Close)

	s.registry = prometheus.NewRegistry()
	recorder, err := observe.New(s.registry)
	if err != nil {
		return s, err
	}
	s.recent = recent.New(observe.Window)
	planMetrics, err := observe.NewPlanMetrics(s.registry)
	if err != nil {
		return s, err
	}
	if s.partitions, err = clientTLS("driver.tls", o.config.Driver.TLS, o.log.With("part", "tls")); err != nil {
		return s, err
	}
	stubs := watchStubs(control.Observer(recorder, s.recent),
		func(partition, reason string) error { return s.reconciler.Restart(partition, reason) }, o.log)
	s.later(stubs.close)
	hint := pointAtAdvice(stubs, func() bool { return s.control.Version().Mode == string(config.ModeObserve) }, s.config.Listen.Admin, o.log)
	s.later(hint.close)
	s.traces = record.New(time.Now)
	s.regions = shm.NewRegions()
	s.later(func() error { s.regions.Close(); return nil })
	if s.tracer, err = s.newTracer(ctx, o.version.Version); err != nil {
		return s, err
	}
	s.dispatcher = dispatch.New(dispatch.Options{
		Spans:    s.tracer,
		Observer: hint, Recorder: s.traces, Logger: o.log.With("part", "dispatch"),
		LoadWait: o.config.Demand.Wait.Std(), MaxLoadWaiters: o.config.Demand.Requests,
		LoadWanted:        func(model string) { s.control.LoadWanted(model) },
		MaxQueuedRequests: o.config.Limits.QueueRequests, MaxQueuedBytes: int64(o.config.Limits.QueueBytes),
		DialOptions:       s.dialOptions(),
		SharedMemoryBytes: sharedMemory(o.config),
		Regions:           s.regions,
		GroupFaulted: func(partition, group string, cause error) {
			s.reconciler.GroupFaulted(partition, group, cause)
		},
		PlaceChanged: func(h router.PlaceHealth) { s.control.PlaceChanged(h) },
		HangFloor:    hangFloor(o.config),
		Swapped:      planMetrics.Swapped,
		Hung:         func(partition string, cause error) { stubs.again(partition, cause.Error()) },
		GroupCleared: func(partition, group string) { s.reconciler.GroupCleared(partition, group) },
		Wanted:       func(e names.InactiveError) error { return s.control.Wanted(e) },
	})
	s.later(s.dispatcher.Close)
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := s.registry.Register(c); err != nil {
			return s, err
		}
	}

	s.connections = s.maxConnections()
	daemon := mps.Detect(ctx, os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "")
	node, err := machine(o.config, daemon, o.log)
	if err != nil {
		return s, err
	}
	if err := exportBounds(s.registry, o.config, s.connections, node); err != nil {
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
	s.evaluations = evaluator(o.policies)
	s.later(s.evaluations.Close)
	bundles, err := s.newCalibration(ctx, node, store, s.scratch, recorder)
	if err != nil {
		return s, err
	}
	book, err := newEstimates(o.config.Estimates, store, bundles)
	if err != nil {
		return s, err
	}
	s.groups = s.newGroups(partitions, node, store)
	s.control, err = control.New(control.Options{
		Evaluator: s.evaluations, Estimates: book, Groups: s.groups,
		Config: o.config, Nodes: []*policy.Node{node}, Repository: store, Attached: others, Requests: s.dispatcher, Recorder: recorder,
		Metrics: planMetrics, DB: db, Logger: o.log.With("part", "control"), Version: o.version,
		CheckDispatch: func(d *policy.Dispatch) error {
			return checkDiscipline(d.GetDiscipline(), d.GetParameters(), d.GetDropPolicy())
		},
		Policies: func(h control.Hooks) (planner.Host, error) { return s.newHost(o, h), nil },
		Reconciler: func(h control.Hooks) (control.Reconciler, error) {
			desired, err := apply.NewStore(db)
			if err != nil {
				return nil, err
			}
			s.reconciler, err = apply.New(apply.Options{
				Dir: filepath.Join(o.config.State, "partitions"), Store: desired, Driver: partitions, Repository: files, Router: s.dispatcher,
				Recorder: control.Samples(recorder), MPS: daemon, Logger: o.log.With("part", "apply"), OnAction: h.ActionDone,
				WarmUp: s.warmUp, LoadTimeout: o.config.Driver.LoadTimeout.Std(), Health: health(o.config),
				// The fronts are open before the first plan is applied.
				Settings:    func(ctx context.Context, at driver.Endpoint) error { return s.aggregator.Replay(ctx, at.GRPC) },
				OnPartition: func(e driver.Event) { h.PartitionChanged(e.Partition, e.Up, changed(e)) },
				Faulted:     clientFaults(daemon), OnFault: h.MPSFault, OnGroupFault: h.GroupFault,
			})
			return s.reconciler, err
		},
	})
	if err != nil {
		return s, err
	}
	if s.servers != nil {
		s.servers.driver.Watch(s.control.ServersChanged)
		s.served = newServed(recorder, s.servers, s.control.PassingThrough, node.GetGpus())
	}
	return s, s.openFronts(ctx)
}

// sharedMemory is what each partition may share with conch. Servers that others
// run are left as they are.
func sharedMemory(c *config.Config) int64 {
	if c.Driver.Kind == config.DriverAttach {
		return 0
	}
	return int64(*c.Limits.SharedMemory)
}

// hangFloor is dispatch.Options.HangFloor.
func hangFloor(c *config.Config) time.Duration {
	if *c.Limits.Hang == 0 {
		return -1
	}
	return c.Limits.Hang.Std()
}

// sameMemory reports whether the servers can only be on this host, where what
// clients share with them can be seen.
func sameMemory(c *config.Config) bool {
	return c.Driver.Kind != config.DriverAttach ||
		!slices.ContainsFunc(c.Driver.Endpoints, func(e config.Endpoint) bool { return !shm.SameHost(e.GRPC) })
}

// changed says why a partition's server is down, or what is amiss since it is
// back.
func changed(e driver.Event) string {
	switch {
	case !e.Up:
		return e.Reason
	case len(e.Missing) > 0:
		return "its models are loaded again: " + strings.Join(e.Missing, ", ")
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
		if s.servers, err = attach(s.config, node, store, s.partitions, s.log); err != nil {
			return nil, err
		}
		return s.servers.driver, nil
	case config.DriverEmbedded:
		return driver.NewEmbedded(driver.EmbeddedOptions{Stretch: d.Stretch, Logger: log}), nil
	}
	options := driver.ProcessOptions{
		Server: d.TritonServer, BackendDir: d.BackendDirectory, Arguments: d.Arguments, Environment: d.Environment,
		Dir: filepath.Join(s.config.State, "servers"), Stretch: d.Stretch, MPS: daemon, Logger: log,
		StartTimeout: d.StartTimeout.Std(), OrphanGrace: d.OrphanGrace.Std(),
		Credentials: s.partitions,
	}
	var err error
	if s.scratch, err = s.scratchDriver(options); err != nil {
		return nil, err
	}
	return driver.NewProcesses(options)
}

// dialOptions of connections to partitions.
func (s *server) dialOptions() []grpc.DialOption {
	all := []grpc.DialOption{experimental.WithBufferPool(&s.buffers)}
	if s.partitions != nil {
		all = append(all, grpc.WithTransportCredentials(s.partitions))
	}
	return all
}

// warmUp is warmup.Run with the credentials of partitions.
func (s *server) warmUp(ctx context.Context, address string, c *tritonpb.ModelConfig, o warmup.Options) (warmup.Result, error) {
	o.Credentials = s.partitions
	return warmup.Run(ctx, address, c, o)
}

func (s *server) newHost(o serverOptions, h control.Hooks) *policyhost.Host {
	own := o.config.Policy
	third := map[string]policyhost.Executable{}
	if own.Executable != "" {
		third[own.Name] = policyhost.Executable{Path: own.Executable, SHA256: own.Checksum}
	}
	host := policyhost.New(policyhost.Options{
		Evaluator: s.evaluations,
		Builtins:  policyhost.Beside(o.policies), BuiltinsSHA256: sumOf(policyhost.Beside(o.policies)), Policies: third,
		Launcher: o.launcher, Limits: policyLimits(o.config), Check: h.Check, OnEvent: h.PolicyEvent,
		Logger: o.log.With("part", "policyhost"), Budget: own.Deadline.Std(),
	})
	s.later(host.Close)
	return host
}

// sumOf is the SHA-256 of a file as it is now, in hex; empty where it cannot be read,
// which the attempt to run it will report. Built-in policies are those that came with this
// conch: others need a restart.
func sumOf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return ""
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// policyLimits are what policies may use: they have no business in conch's state, nor
// with its operators' socket.
func policyLimits(c *config.Config) confine.Limits {
	limits := confine.Default()
	limits.User, limits.Hidden = confine.Nobody, []string{c.State}
	if socket, ok := strings.CutPrefix(c.Listen.Admin, "unix://"); ok {
		limits.Hidden = append(limits.Hidden, socket)
	}
	return limits
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
	if s.served != nil {
		planner.Go(func() { s.served.run(planning) })
	}
	s.serveFronts(planning, failed, &fronts)

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

// stop ends the request way. First clients are sent elsewhere (GOAWAY, Connection:
// close), and nothing new is accepted; what was accepted is finished, within
// limits.drain; then the fronts close, and the Triton processes end.
func (s *server) stop() {
	drain, cancel := context.WithTimeout(context.Background(), s.config.Limits.Drain.Std())
	defer cancel()
	if s.config.Listen.ReusePort {
		s.handOver(drain)
	}
	s.leaving.Store(true) // HTTP answers say Connection: close
	graceful, quiet := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop() // sends GOAWAY, and waits for the calls
	}()
	go func() {
		defer close(quiet)
		if err := s.http.Shutdown(drain); err != nil {
			s.log.Warn("HTTP callers are cut off", "error", errors.Join(err, s.http.Close()))
		}
	}()
	if err := s.dispatcher.Drain(drain); err != nil {
		s.log.Warn("not every accepted request was answered in time", "error", err)
	}
	<-quiet
	select {
	case <-graceful:
	case <-drain.Done():
		s.grpc.Stop()
		<-graceful
	}
	ending, cancelEnding := context.WithTimeout(context.Background(), stopServers)
	defer cancelEnding()
	if err := s.reconciler.Close(ending, s.leave.Load()); err != nil {
		s.log.Warn("partitions did not end cleanly", "error", err)
	}
	s.watchers.Stop(stopWatching)
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
