// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/calibration"
	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/sidecar/component"
	"github.com/conch-serving/conch/sidecar/component/cluster"
	"github.com/conch-serving/conch/sidecar/component/credentials"
	"github.com/conch-serving/conch/sidecar/component/evaluations"
	"github.com/conch-serving/conch/sidecar/component/fronts"
	"github.com/conch-serving/conch/sidecar/component/machine"
	"github.com/conch-serving/conch/sidecar/component/modelcontrol"
	"github.com/conch-serving/conch/sidecar/component/observers"
	"github.com/conch-serving/conch/sidecar/component/operators"
	"github.com/conch-serving/conch/sidecar/component/partitions"
	"github.com/conch-serving/conch/sidecar/component/policies"
	"github.com/conch-serving/conch/sidecar/component/reload"
	"github.com/conch-serving/conch/sidecar/component/routes"
	"github.com/conch-serving/conch/sidecar/component/scratch"
	"github.com/conch-serving/conch/sidecar/component/servers"
	"github.com/conch-serving/conch/sidecar/component/state"
	"github.com/conch-serving/conch/sidecar/component/traces"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/estimates"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/merging"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/observe/recent"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/record"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// conch is the daemon put together. Components get what was made before them by
// value, and reach what is made after them through functions, which are called once
// everything runs.
type conch struct {
	command.Daemon
	// leave reports whether servers of conch's own go on when it stops.
	leave func() bool
	// running is closed once every component is made.
	running chan struct{}

	cluster *cluster.Cluster // nil unless servers are Pods
	state   *state.State
	// What is seen of requests and plans: conch's metrics, what profiles are learnt
	// from, what became of requests a short while ago, and traces that clients ask for.
	registry *prometheus.Registry
	recorder *observe.Recorder
	recent   *recent.Recorder
	plans    *observe.PlanMetrics
	traces   *record.Recorder
	tracer   *spans.Tracer // nil while tracing is off

	node *policy.Node
	mps  mps.Daemon
	// connections bounds the open connections of clients.
	connections int
	// tritonTLS are the credentials of Triton's gRPC; nil is in the clear.
	tritonTLS   grpccredentials.TransportCredentials
	servers     *servers.Servers
	evaluations *evaluate.Child
	calibration *calibration.Calibration
	bundles     []*estimator.Bundle // of earlier calibrations
	groups      *merging.Book

	stubs *observers.DeadStubs
	hint  *observers.Hint
	// buffers are what requests and answers are received into.
	buffers    buffers.Pool
	regions    *shm.Regions // of memory that clients have registered
	dispatcher *dispatch.Dispatcher

	host       *policyhost.Host
	control    *control.Control
	partitions *partitions.Partitions
	aggregate  *aggregate.Aggregate
	operators  *operators.Operators
	fronts     *fronts.Fronts
	reload     *reload.Reload
}

func newConch(d command.Daemon, leave func() bool) *conch {
	return &conch{Daemon: d, leave: leave, running: make(chan struct{})}
}

// components of conch, in the order in which they are made. They end in reverse
// order: nothing is planned any more and no file is read again, then what clients
// have asked is answered and their doors are shut, then the Triton processes end,
// watched by operators to the last, then what all of these were using is closed.
func (c *conch) components() component.List {
	return component.List{
		{Name: "cluster", New: c.newCluster},
		{Name: "state", New: c.newState},
		{Name: "metrics", New: c.newMetrics},
		{Name: "tracing", New: c.newTracing},
		{Name: "machine", New: c.newMachine},
		{Name: "dead stubs", New: c.newStubs},
		{Name: "hint", New: c.newHint},
		{Name: "shared memory", New: c.newRegions},
		{Name: "requests", New: c.newDispatcher},
		{Name: "servers", New: c.newServers},
		{Name: "evaluations", New: c.newEvaluations},
		{Name: "scratch partitions", New: c.newScratch},
		{Name: "policies", New: c.newControl},
		{Name: "aggregate", New: c.newAggregate},
		{Name: "operators", New: c.newOperators},
		{Name: "partitions", New: c.newPartitions},
		{Name: "clients", New: c.newFronts},
		{Name: "handed on", New: c.newHandedOn},
		{Name: "statistics of servers", New: c.newServed},
		{Name: "planning", New: c.newPlanning},
		{Name: "reload", New: c.newReload},
	}
}

// run runs the components until ctx ends.
func (c *conch) run(ctx context.Context, opened *component.Opened) error {
	var listening []any
	for _, key := range []string{"grpc", "http", "metrics", "admin", "ui"} {
		if at := c.address(key); at != nil {
			listening = append(listening, key, at.String())
		}
	}
	state := "conch listens"
	if c.cluster.Follows() {
		state = "conch listens; until it owns the release's servers requests are handed on to the replica that does, or wait"
	}
	c.Log.Info(state, listening...)
	close(c.running)
	defer context.AfterFunc(ctx, func() {
		c.Log.Info("stopping: accepted requests are finished", "at_most", c.Config.Limits.Drain.String())
	})()
	return opened.Run(ctx)
}

// address is that of a door by its key in conch.yaml; nil while it is not open.
func (c *conch) address(key string) net.Addr {
	if at := c.cluster.Address(key); at != nil {
		return at
	}
	if key == "grpc" || key == "http" {
		return c.fronts.Address(key)
	}
	return c.operators.Address(key)
}

func (c *conch) newCluster(ctx context.Context) (_ component.Component, err error) {
	if c.Config.Driver.Kind != config.DriverKubernetes {
		return nil, nil
	}
	c.leave = func() bool { return true } // Pods outlive conch: the next one finds them, and their owner takes them along
	c.cluster, err = cluster.New(ctx, c.Config, fronts.MaxConnections(c.Config.Limits.Connections, c.Log), c.Log.With("part", "cluster"))
	return c.cluster, err
}

func (c *conch) newState(context.Context) (_ component.Component, err error) {
	o := state.Options{Emulated: c.Config.Driver.Kind == config.DriverEmbedded, Log: c.Log}
	if c.cluster != nil {
		o.Store, o.Files, o.Fence = c.cluster.Store, c.cluster.Files, c.cluster.Owns
	}
	c.state, err = state.Open(c.Config.State, o)
	return c.state, err
}

func (c *conch) newMetrics(context.Context) (_ component.Component, err error) {
	c.registry = prometheus.NewRegistry()
	c.recent, c.traces = recent.New(recent.Options{Window: observe.Window, Now: time.Now()}), record.New(time.Now)
	if c.recorder, err = observe.New(c.registry); err != nil {
		return nil, err
	}
	if c.plans, err = observe.NewPlanMetrics(c.registry); err != nil {
		return nil, err
	}
	if c.cluster.Doors() {
		if err := c.registry.Register(c.cluster.Metrics()); err != nil {
			return nil, err
		}
	}
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	return nil, errors.Join(c.registry.Register(collectors.NewGoCollector()), c.registry.Register(process))
}

func (c *conch) newTracing(ctx context.Context) (component.Component, error) {
	provider, on, err := traces.New(ctx, c.Config.Tracing, c.Version.Version, c.Log.With("part", "tracing"))
	if !on {
		return nil, err
	}
	c.tracer = spans.New(provider)
	return component.Closing(provider.Close), nil
}

func (c *conch) newMachine(ctx context.Context) (_ component.Component, err error) {
	if k := c.Config.Driver; k.Kind == config.DriverKubernetes {
		c.mps = mps.Daemon{Running: k.Kubernetes.GPUs.Sharing == "mps", Reason: "driver.kubernetes.gpus.sharing is none", Elsewhere: true}
	} else {
		c.mps = mps.Detect(ctx, os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "")
	}
	if c.node, err = machine.Node(c.Config, c.mps, c.Log); err != nil {
		return nil, err
	}
	c.connections = fronts.MaxConnections(c.Config.Limits.Connections, c.Log)
	return nil, machine.ExportBounds(c.registry, c.Config, c.connections, c.node)
}

func (c *conch) newStubs(context.Context) (component.Component, error) {
	restart := func(partition, reason string) error { return c.partitions.Restart(partition, reason) }
	c.stubs = observers.WatchStubs(control.Observer(c.recorder, c.recent), restart, c.Log)
	return c.stubs, nil
}

func (c *conch) newHint(context.Context) (component.Component, error) {
	observing := func() bool { return c.control.Version().Mode == string(config.ModeObserve) }
	c.hint = observers.PointAtAdvice(c.stubs, observing, c.Config.Listen.Admin, c.Log)
	return c.hint, nil
}

func (c *conch) newRegions(context.Context) (component.Component, error) {
	c.regions = shm.NewRegions()
	return component.Closing(func() error { c.regions.Close(); return nil }), nil
}

// checkMemory checks that the attached servers share memory with conch. One that does not answer yet is not checked: its tensors go through the socket unless it
// takes what it is offered later.
func (c *conch) checkMemory(ctx context.Context, over forward.Options) error {
	for _, e := range c.Config.Driver.Endpoints {
		bounded, cancel := context.WithTimeout(ctx, memoryPatience)
		err := router.CheckMemory(bounded, e.GRPC, over)
		cancel()
		switch {
		case errors.Is(err, router.ErrSilent):
			c.Log.Warn("whether a server shares memory with conch is not known", "server", e.GRPC, "error", err)
		case err != nil:
			return fmt.Errorf("driver.sharedMemory: the server at %s shares no memory with conch; it has to be on this host, to have this /dev/shm, to run as conch's user, and to be started without --allow-client-shm=false: %w", e.GRPC, err)
		}
	}
	return nil
}

// memoryPatience is how long a server may take to say whether it shares memory.
const memoryPatience = 5 * time.Second

func (c *conch) newDispatcher(ctx context.Context) (_ component.Component, err error) {
	if c.tritonTLS, err = credentials.Client("driver.tls", c.Config.Driver.TLS, c.Log.With("part", "tls")); err != nil {
		return nil, err
	}
	limits := c.Config.Limits
	shared := int64(*limits.SharedMemory)
	if c.Config.Driver.Kind == config.DriverAttach && !c.Config.Driver.SharedMemory {
		shared = 0 // servers that others run are left as they are
	}
	over := forward.Options{Credentials: c.tritonTLS, GRPC: c.Config.Wire == config.WireGRPC, Pool: &c.buffers}
	if c.Config.Driver.SharedMemory {
		if err := c.checkMemory(ctx, over); err != nil {
			return nil, err
		}
	}
	hang := limits.Hang.Std()
	if hang == 0 {
		hang = -1
	}
	c.dispatcher = dispatch.New(dispatch.Options{
		Right: c.cluster,
		Spans: c.tracer, Observer: c.hint, Recorder: c.traces, Logger: c.Log.With("part", "dispatch"),
		Forward:  over,
		LoadWait: c.Config.Demand.Wait.Std(), MaxLoadWaiters: c.Config.Demand.Requests,
		MaxQueuedRequests: limits.QueueRequests, MaxQueuedBytes: int64(limits.QueueBytes),
		SharedMemoryBytes: shared, Regions: c.regions, HangFloor: hang, Swapped: c.plans.Swapped,
		LoadWanted: func(model string) { c.control.LoadWanted(model) },
		Wanted:     func(e names.InactiveError) error { return c.control.Wanted(e) },
		PlaceChanged: func(h router.PlaceHealth) {
			if h.Group {
				c.partitions.GroupChanged(h) // which reports it
			} else {
				c.control.PlaceChanged(h)
			}
		},
		Hung: func(partition string, cause error) { c.stubs.Again(partition, cause.Error()) },
	})
	return component.Closing(func() error { return errors.Join(c.dispatcher.Close(), c.cluster.Ended()) }), nil
}

func (c *conch) newServers(ctx context.Context) (_ component.Component, err error) {
	c.servers, err = servers.New(ctx, servers.Options{
		Config: c.Config, Node: c.node, Store: c.state.Repository, Credentials: c.tritonTLS, MPS: c.mps, Log: c.Log, Cluster: c.cluster,
		Leaving:      func(partition, reason string) { c.whenRunning(func() { c.leaving(partition, reason) }) },
		NodesChanged: func(reason string) { c.whenRunning(func() { c.control.NodesChanged(reason) }) },
	})
	return c.servers, err
}

// whenRunning calls a function in a goroutine of its own, once every component is made: a cluster changes while conch starts, too. While another replica leads
// nothing is called: whoever begins to lead looks at everything anew.
func (c *conch) whenRunning(call func()) {
	go func() {
		<-c.running
		if !c.cluster.Follows() {
			call()
		}
	}()
}

// leaving has another server take the place of one that somebody else ends.
func (c *conch) leaving(partition, reason string) {
	if err := c.partitions.StartAnew(partition, reason); err != nil {
		c.Log.Debug("a server that others end is not wanted any more", "partition", partition, "reason", reason, "error", err)
	}
}

func (c *conch) newEvaluations(context.Context) (component.Component, error) {
	c.evaluations = evaluations.Child(c.Program)
	return component.Closing(c.evaluations.Close), nil
}

func (c *conch) newScratch(ctx context.Context) (_ component.Component, err error) {
	o := scratch.Options{
		Config: c.Config, Node: c.node, Store: c.state.Repository, Servers: c.servers, Recorder: c.recorder, Log: c.Log,
		Look:       func() control.Look { return c.control.Look() },
		Calibrated: func(b *estimator.Bundle) { c.control.Calibrated(b) },
	}
	c.groups = scratch.NewGroups(o)
	c.calibration, c.bundles, err = scratch.NewCalibration(ctx, o)
	return nil, err
}

// newControl makes the plan way, with its policy host and its reconciler. What runs
// of it are policies, partitions and planning, each in its place of the list.
func (c *conch) newControl(context.Context) (component.Component, error) {
	book, err := c.estimates()
	if err != nil {
		return nil, err
	}
	var others control.Attached
	if c.servers.Others != nil {
		others = c.servers.Others.Catalogue
	}
	var want func(map[string]int)
	if c.servers.Pods != nil {
		want = c.servers.Pods.Want
	}
	version := c.Version
	version.Replica = c.cluster.Name()
	c.control, err = control.New(control.Options{
		Evaluator: c.evaluations, Estimates: book, Groups: c.groups, Config: c.Config, Nodes: c.servers.Nodes,
		Repository: c.state.Repository, Attached: others, Requests: c.dispatcher, Recorder: c.recorder, Metrics: c.plans,
		Store: c.state.Store, Told: c.told, WantGPUs: want, Cluster: c.cluster.Silence,
		Logger: c.Log.With("part", "control"), Version: version,
		CheckDispatch: func(d *policy.Dispatch) error {
			return command.CheckDiscipline(d.GetDiscipline(), d.GetParameters(), d.GetDropPolicy())
		},
		Policies: func(h control.Hooks) (planner.Host, error) {
			c.host = policies.New(c.Config, c.Program, c.Launcher, c.evaluations, h, c.Log)
			return c.host, nil
		},
		Reconciler: func(h control.Hooks) (_ control.Reconciler, err error) {
			c.partitions, err = partitions.New(partitions.Options{
				Config: c.Config, State: c.state, Servers: c.servers, Router: c.dispatcher, Recorder: c.recorder, MPS: c.mps, Credentials: c.tritonTLS,
				Replay: func(ctx context.Context, server grpc.ClientConnInterface) error {
					return c.aggregate.Replay(ctx, server)
				},
				Hooks: h, Leave: c.leave, Fence: c.cluster.Fence(), Log: c.Log,
			})
			if err == nil {
				c.cluster.Reaching(c.partitions.CutOff)
			}
			return c.partitions, err
		},
	})
	if err != nil && c.host != nil {
		err = errors.Join(err, c.host.Close())
	}
	if err != nil {
		return nil, err
	}
	if c.servers.Others != nil {
		c.servers.Others.Driver.Watch(c.control.ServersChanged)
	}
	return component.Closing(c.host.Close), nil
}

// told has the cluster know of an event that is about a server in a Pod.
func (c *conch) told(e api.Event) {
	if partition := e.Fields["partition"]; partition != "" && c.servers.Pods != nil {
		c.servers.Pods.Report(partition, string(e.Kind), e.Message, events.Grave(e.Kind), e.Time)
	}
}

// estimates are nil where conch.yaml turns them off.
func (c *conch) estimates() (*estimates.Book, error) {
	if c.Config.Estimates.Off {
		return nil, nil //nolint:nilnil // nil is a setting
	}
	return scratch.NewEstimates(c.Config.Estimates, c.state.Repository, c.bundles)
}

func (c *conch) routes() routes.Routes {
	return routes.Routes{Dispatcher: c.dispatcher, Control: c.control, Reconciler: c.partitions.Reconciler}
}

func (c *conch) newAggregate(context.Context) (component.Component, error) {
	var others *driver.Attached
	if c.servers.Others != nil {
		others = c.servers.Others.Driver
	}
	o := aggregate.Options{
		Partitions: c.routes(), Models: c.routes(), Counts: c.routes(),
		Repository: modelcontrol.New(c.control, others, c.Config.ModelControl.Clients),
	}
	// Where servers may be on other hosts, what clients share with them cannot be
	// seen, and no region is kept.
	far := func(e config.Endpoint) bool { return !shm.SameHost(e.GRPC) }
	if kind := c.Config.Driver.Kind; kind != config.DriverKubernetes && c.Config.Driver.Service == (config.Service{}) && (kind != config.DriverAttach || !slices.ContainsFunc(c.Config.Driver.Endpoints, far)) {
		o.Regions = c.regions
	}
	c.aggregate = aggregate.New(o)
	return nil, nil
}

func (c *conch) newOperators(ctx context.Context) (_ component.Component, err error) {
	var follows func() (owner string, is bool)
	if c.cluster != nil {
		follows = func() (string, bool) { return c.cluster.Owner(), c.cluster.Follows() }
	}
	c.operators, err = operators.New(ctx, operators.Options{
		Logs: c.servers.Logs(), Config: c.Config, Control: c.control, Dispatcher: c.dispatcher, Routes: c.routes(), Recent: c.recent, Traces: c.traces,
		Calibration: c.calibration, Groups: c.groups, Others: c.servers.Others,
		Fronts:      func() (api.Check, bool) { return c.fronts.Check() },
		MetricsDoor: func() net.Listener { return c.cluster.Door("metrics") }, Leading: c.cluster.Leading(), Follows: follows,
		Registry: c.registry, Log: c.Log,
	})
	return c.operators, err
}

// newPartitions has been made with control.
func (c *conch) newPartitions(context.Context) (component.Component, error) { return c.partitions, nil }

func (c *conch) newFronts(ctx context.Context) (_ component.Component, err error) {
	ready := func() bool {
		return !slices.ContainsFunc(admin.Checks(c.control.Readiness()), func(check api.Check) bool { return !check.OK })
	}
	var doors func(key string) net.Listener
	if c.cluster.Doors() {
		doors = c.cluster.Door
	}
	c.fronts, err = fronts.New(ctx, fronts.Options{
		Doors: doors, Late: c.cluster != nil,
		Config: c.Config, Dispatcher: c.dispatcher, Aggregate: c.aggregate, Picker: c.routes(), Ready: ready,
		Connections: c.connections, Buffers: &c.buffers, Spans: c.tracer, Registry: c.registry, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	return component.After(c.cluster.Leading(), c.fronts), nil
}

func (c *conch) newServed(context.Context) (component.Component, error) {
	if c.servers.Others == nil {
		return nil, nil
	}
	return servers.NewServed(c.recorder, c.servers.Others, c.control.PassingThrough, c.servers.Nodes), nil
}
