// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// AttachEndpoint is a Triton server that others run.
type AttachEndpoint struct {
	// GPU is the id of the GPU that stands for the server's device: it is how a
	// partition finds its endpoint.
	GPU string
	Endpoint
	// Repository is the server's model repository, if conch may write it; else
	// empty.
	Repository string
	// Executions is how many batches the server executes at once, by its operator's word; 0:
	// as its models' instance groups say.
	Executions int
}

// AttachOptions of NewAttached. Logger may be nil, and zero times take the
// driver's defaults.
type AttachOptions struct {
	Endpoints []AttachEndpoint
	// Credentials are how the servers' gRPC is reached; nil means in the clear.
	Credentials credentials.TransportCredentials
	// Health says how often each server is looked at, and how long it may take to
	// answer. What it serves is read as often.
	Health      Health
	LoadTimeout time.Duration
	Logger      *slog.Logger
}

// Attached is the driver "attach": one partition for every endpoint. It starts
// and stops nothing. A server that dies, hangs or goes away is reported down,
// and up when it is back, by whatever hand.
type Attached struct {
	o AttachOptions

	mu        sync.Mutex
	endpoints []*endpoint // never changed in place
	changed   func(reason string)
	life      context.Context // nil before Watch
	stop      context.CancelFunc
	watching  sync.WaitGroup
}

// NewAttached makes the driver. It makes no call before Watch.
func NewAttached(o AttachOptions) (*Attached, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Health = o.Health.WithDefaults()
	if o.LoadTimeout <= 0 {
		o.LoadTimeout = 5 * time.Minute
	}
	d := &Attached{o: o}
	if err := d.Set(o.Endpoints); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Set makes other servers those that there are. One that is not among them any more takes no new requests once the plan has followed; what it has
// accepted it answers. A server that is among them still, at the same address, is not touched.
func (d *Attached) Set(endpoints []AttachEndpoint) error {
	d.mu.Lock()
	var next, left []*endpoint
	var errs []error
	for _, at := range endpoints {
		if i := slices.IndexFunc(d.endpoints, func(e *endpoint) bool { return e.at == at }); i >= 0 {
			next = append(next, d.endpoints[i])
			continue
		}
		c, err := dial(at.GRPC, d.o.Credentials)
		if err != nil {
			errs = append(errs, fmt.Errorf("attach driver: %w", err))
			continue
		}
		e := &endpoint{at: at, client: c.client, health: d.o.Health, log: d.o.Logger.With("endpoint", at.GRPC), changed: make(chan struct{})}
		next = append(next, e)
		if d.life != nil {
			d.watch(e)
		}
	}
	for _, e := range d.endpoints {
		if !slices.Contains(next, e) {
			left = append(left, e)
		}
	}
	d.endpoints = next
	watched, changed := d.life != nil, d.changed
	d.mu.Unlock()
	for _, e := range left {
		if e.retire(); !watched {
			errs = append(errs, e.client.Close())
		}
	}
	if watched && len(left) > 0 {
		changed(fmt.Sprintf("the server at %s is none of those any more", left[0].at.GRPC))
	}
	return errors.Join(errs...)
}

// watch looks at a server until it is retired and of no use any more, or conch ends. d.mu is held.
func (d *Attached) watch(e *endpoint) {
	life, changed := d.life, d.changed
	d.watching.Go(func() {
		e.watch(life, changed)
		_ = e.client.Close() // what it was used for has ended
	})
}

// all are the endpoints as they are now.
func (d *Attached) all() []*endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.endpoints
}

// of is the endpoint of a GPU; nil where there is none.
func (d *Attached) of(gpu string) *endpoint {
	for _, e := range d.all() {
		if e.at.GPU == gpu {
			return e
		}
	}
	return nil
}

// Known are the servers as they are now, without waiting for one that was not reached yet.
func (d *Attached) Known() []EndpointState {
	all := d.all()
	list := make([]EndpointState, len(all))
	for i, e := range all {
		list[i] = e.state()
	}
	return list
}

// Watch begins to look at the servers. Changed is called, from goroutines of the
// driver, when what a server serves is another than before.
func (d *Attached) Watch(changed func(reason string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life, d.stop = context.WithCancel(context.Background())
	d.changed = changed
	for _, e := range d.endpoints {
		d.watch(e)
	}
}

// Repository is the endpoint's own, where conch may write it.
func (d *Attached) Repository(gpu string) string {
	if e := d.of(gpu); e != nil {
		return e.at.Repository
	}
	return ""
}

// Lasting is true: the servers go on without conch.
func (d *Attached) Lasting() bool { return true }

// Hash implements Driver: a server of others is what it is, and at another address another one.
func (d *Attached) Hash(_ *policy.Partition, g *policy.GPU) string {
	if e := d.of(g.GetId()); e != nil {
		return "attached " + e.at.GRPC
	}
	return "attached"
}

// Find implements Driver: servers that others run are attached to by Start.
func (d *Attached) Find(context.Context) ([]Server, error) { return nil, nil }

// Start attaches a partition to the endpoint of its GPU, once that answers.
func (d *Attached) Start(ctx context.Context, spec Spec) (Server, error) {
	e := d.of(spec.GPU.GetId())
	if e == nil {
		return nil, fmt.Errorf("partition %s: no endpoint stands for GPU %s", spec.Partition.GetId(), spec.GPU.GetId())
	}
	if share := spec.Partition.GetThreadPercentage(); share != 100 {
		return nil, fmt.Errorf("partition %s: a share of %d%% of %s: %w, so that its share cannot be set", spec.Partition.GetId(), share, e.at.GRPC, ErrForeign)
	}
	life, err := e.awaitUp(ctx)
	if err != nil {
		return nil, err
	}
	e.use(+1)
	return &attachedServer{calls: calls{e.client}, to: e, life: life, spec: spec}, nil
}

// Close stops watching the servers and leaves them as they are.
func (d *Attached) Close() error {
	d.mu.Lock()
	stop := d.stop
	d.mu.Unlock()
	if stop != nil {
		stop()
		d.watching.Wait()
		return nil
	}
	var errs []error
	for _, e := range d.all() {
		errs = append(errs, e.client.Close())
	}
	return errors.Join(errs...)
}

// EndpointState is what is known of one server.
type EndpointState struct {
	AttachEndpoint
	// Seen is false until the server answered for the first time.
	Seen, Up bool
	// Reason says why it is down.
	Reason string
	// Shut are the addresses of Endpoint at which nothing answered while gRPC did:
	// "HTTP", "metrics".
	Shut []string
	// Models are those that it serves, or served before it went down, by name.
	Models []Served
	// AtOnce is how many batches it executes at once.
	AtOnce int
}

// Served is a model that a server has READY.
type Served struct {
	Name string
	// Config is the server's own, its defaults filled in.
	Config   *tritonpb.ModelConfig
	Versions []int64
	// Original is what the server reported before TakeOver; nil where nothing was
	// changed.
	Original *tritonpb.ModelConfig
}

// Batching is the model's dynamic_batching as the server's operator configured it.
func (s Served) Batching() *tritonpb.ModelDynamicBatching {
	if now := s.Config.GetDynamicBatching(); s.Original == nil || now != nil && !triton.BatchesAtOnce(now) {
		return now
	}
	return s.Original.GetDynamicBatching()
}

// States are those of all endpoints, in their order. It waits until every one was
// tried once.
func (d *Attached) States(ctx context.Context) ([]EndpointState, error) {
	var states []EndpointState
	for _, e := range d.all() {
		if err := e.await(ctx, func() bool { return e.tried }); err != nil {
			return nil, err
		}
		state := e.state()
		state.Models = slices.Clone(state.Models)
		for i, m := range state.Models {
			state.Models[i].Original, state.Models[i].Config = original(m.Config), unmarked(m.Config)
		}
		states = append(states, state)
	}
	return states, nil
}

// Reload makes the server on a GPU load a model again, from its repository.
func (d *Attached) Reload(ctx context.Context, gpu, model string) error {
	e := d.of(gpu)
	if e == nil {
		return fmt.Errorf("reload %q: no endpoint stands for GPU %s", model, gpu)
	}
	within, cancel := context.WithTimeout(ctx, d.o.LoadTimeout)
	defer cancel()
	return e.client.Load(within, model)
}

// Each calls the servers that are up, one after the other, until one fails. It is
// for what a client orders of them.
func (d *Attached) Each(ctx context.Context, call func(ctx context.Context, s EndpointState, client tritonpb.GRPCInferenceServiceClient) error) error {
	for _, e := range d.all() {
		if s := e.state(); s.Up {
			if err := call(ctx, s, e.client.Stub); err != nil {
				return err
			}
		}
	}
	return nil
}

// Ordered notes that a client had the server that stands on a GPU load a model, or
// unload it. A model of which only the client has the files is in no index: it is
// followed from the first on and until the second.
func (d *Attached) Ordered(gpu, model string, loaded bool) {
	for _, e := range d.all() {
		switch {
		case e.at.GPU != gpu:
		case loaded:
			e.expect(model)
		default:
			e.expectNoMore(model)
		}
	}
}

// Look reads at once what every server serves.
func (d *Attached) Look(ctx context.Context) {
	for _, e := range d.all() {
		e.look(ctx, func(string) {})
	}
}

// attachedServer is a server from the moment that it answered until it did not.
type attachedServer struct {
	calls
	to   *endpoint
	life *lifetime
	spec Spec
	once sync.Once // it is left
}

// Models implements Server: also those that are in no index.
func (s *attachedServer) Models(ctx context.Context) ([]string, error) {
	names, err := s.calls.Models(ctx)
	if err != nil {
		return nil, err
	}
	for _, model := range s.to.expected() {
		if slices.Contains(names, model) {
			continue
		}
		ready, err := s.client.ModelReady(ctx, model, "")
		if err != nil && !triton.IsNotFound(err) {
			return nil, err
		}
		if ready {
			names = append(names, model)
		}
	}
	return names, nil
}

func (s *attachedServer) Spec() Spec             { return s.spec }
func (s *attachedServer) Endpoint() Endpoint     { return s.to.at.Endpoint }
func (s *attachedServer) Executions() Executions { return s.to.executes() }
func (s *attachedServer) Begin() time.Time       { return time.Time{} }
func (s *attachedServer) Log() string            { return "" }
func (s *attachedServer) Done() <-chan struct{}  { return s.life.over }
func (s *attachedServer) Death() string          { return s.life.reason }

// Live implements Server: the endpoint is looked at all the time, and what does
// not answer is dead by that.
func (s *attachedServer) Live(context.Context) error { return nil }

// Load implements Server.
func (s *attachedServer) Load(ctx context.Context, model string) error {
	return loadIn(ctx, s, model, func(ctx context.Context) error { return s.load(ctx, model) })
}

// Unload implements Server.
func (s *attachedServer) Unload(ctx context.Context, model string) error { return s.unload(ctx, model) }

// Stop and Leave leave the server as it is: it keeps running.
func (s *attachedServer) Stop(context.Context) error { return s.Leave() }

// Leave implements Server.
func (s *attachedServer) Leave() error {
	s.once.Do(func() { s.to.use(-1) })
	return nil
}

// Kill leaves the server alone.
func (s *attachedServer) Kill(context.Context) error {
	return fmt.Errorf("%s: %w; its operator has to restart it", s.to.at.GRPC, ErrForeign)
}

// sameServed reports whether two servers serve the same.
func sameServed(a, b []Served) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || fmt.Sprint(a[i].Versions) != fmt.Sprint(b[i].Versions) || !proto.Equal(a[i].Config, b[i].Config) {
			return false
		}
	}
	return true
}
