// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
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
}

// AttachOptions of NewAttached. Logger may be nil, and zero times take the
// driver's defaults.
type AttachOptions struct {
	Endpoints []AttachEndpoint
	// Credentials are how the servers' gRPC is reached; nil means in the clear.
	Credentials credentials.TransportCredentials
	// Dir keeps what is given back with HandBack.
	Dir string
	// Health says how often each server is looked at, and how long it may take to
	// answer. What it serves is read as often.
	Health                    Health
	LoadTimeout, DrainTimeout time.Duration
	Logger                    *slog.Logger
}

// Attached is the driver "attach": one partition for every endpoint. It starts
// and stops nothing. A server that dies, hangs or goes away is reported down,
// and up when it is back, by whatever hand.
type Attached struct {
	o         AttachOptions
	endpoints []*endpoint
	byGPU     map[string]*endpoint
	originals *originals

	watching sync.WaitGroup
	stop     context.CancelFunc

	fleet fleet
}

// ErrForeign means that the server is not conch's to start or stop.
var ErrForeign = errors.New("the server is run by others")

// NewAttached makes the driver. It calls nobody before Watch.
func NewAttached(o AttachOptions) (*Attached, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Health = o.Health.withDefaults()
	if o.LoadTimeout <= 0 {
		o.LoadTimeout = 5 * time.Minute
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = 30 * time.Second
	}
	d := &Attached{o: o, byGPU: map[string]*endpoint{}}
	var err error
	if d.originals, err = openOriginals(filepath.Join(o.Dir, "originals.json")); err != nil {
		return nil, err
	}
	options := dialOptions()
	if o.Credentials != nil {
		options = append(options, grpc.WithTransportCredentials(o.Credentials))
	}
	for _, at := range o.Endpoints {
		client, err := triton.Dial(at.GRPC, options...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach driver: %w", err), d.Close())
		}
		e := &endpoint{at: at, client: client, health: o.Health, log: o.Logger.With("endpoint", at.GRPC), changed: make(chan struct{})}
		d.endpoints = append(d.endpoints, e)
		d.byGPU[at.GPU] = e
	}
	return d, nil
}

// Watch begins to look at the servers. Changed is told, from goroutines of the
// driver, when what a server serves is another than before.
func (d *Attached) Watch(changed func(reason string)) {
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	for _, e := range d.endpoints {
		d.watching.Go(func() { e.watch(ctx, changed) })
	}
}

// Kind is "attach".
func (d *Attached) Kind() string { return "attach" }

// Repository is the endpoint's own, where conch may write it.
func (d *Attached) Repository(gpu string) string {
	if e := d.byGPU[gpu]; e != nil {
		return e.at.Repository
	}
	return ""
}

// Lasting is true: the servers go on without conch.
func (d *Attached) Lasting() bool { return true }

// Start attaches a partition to the endpoint of its GPU. A server that is down
// at the moment is attached too, and reported down.
func (d *Attached) Start(ctx context.Context, spec Spec) (Process, error) {
	e := d.byGPU[spec.GPU.GetId()]
	if e == nil {
		return nil, fmt.Errorf("partition %s: no endpoint stands for GPU %s", spec.Partition.GetId(), spec.GPU.GetId())
	}
	if share := spec.Partition.GetThreadPercentage(); share != 100 {
		return nil, fmt.Errorf("partition %s: a share of %d%% of %s: %w, so that its share cannot be set", spec.Partition.GetId(), share, e.at.GRPC, ErrForeign)
	}
	first := true
	launch := func(ctx context.Context) (server, error) {
		if first {
			first = false
			return &attachedServer{to: e, life: e.lifetime()}, nil
		}
		life, err := e.awaitUp(ctx)
		return &attachedServer{to: e, life: life}, err
	}
	return d.fleet.start(ctx, spec, launch, Backoff{Max: time.Second}, limits{load: d.o.LoadTimeout, drain: d.o.DrainTimeout, foreign: true}, d.o.Logger, nil)
}

// Close lets go of the servers and leaves them as they are.
func (d *Attached) Close() error {
	d.fleet.close()
	if d.stop != nil {
		d.stop()
	}
	d.watching.Wait()
	var errs []error
	for _, e := range d.endpoints {
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

// Batching is the model's dynamic_batching as those who run the server want it.
func (s Served) Batching() *tritonpb.ModelDynamicBatching {
	if s.Config.GetDynamicBatching() == nil && s.Original != nil {
		return s.Original.GetDynamicBatching()
	}
	return s.Config.GetDynamicBatching()
}

// States are those of all endpoints, in their order. It waits until every one was
// tried once.
func (d *Attached) States(ctx context.Context) ([]EndpointState, error) {
	states := make([]EndpointState, 0, len(d.endpoints))
	for _, e := range d.endpoints {
		if err := e.await(ctx, func() bool { return e.tried }); err != nil {
			return nil, err
		}
		state, kept := e.state(), d.originals.of(e.at.GRPC)
		for i := range state.Models {
			state.Models[i].Original = kept[state.Models[i].Name]
		}
		states = append(states, state)
	}
	return states, nil
}

// Reload makes the server on a GPU load a model again, from its repository.
func (d *Attached) Reload(ctx context.Context, gpu, model string) error {
	e := d.byGPU[gpu]
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
	for _, e := range d.endpoints {
		if s := e.state(); s.Up {
			if err := call(ctx, s, e.client.Stub); err != nil {
				return err
			}
		}
	}
	return nil
}

// Look reads at once what every server serves.
func (d *Attached) Look(ctx context.Context) {
	for _, e := range d.endpoints {
		e.look(ctx, func(string) {})
	}
}

// attachedServer is a server from the moment that it answered until it did not.
type attachedServer struct {
	to   *endpoint
	life *lifetime
}

func (s *attachedServer) endpoint() Endpoint    { return s.to.at.Endpoint }
func (s *attachedServer) done() <-chan struct{} { return s.life.over }
func (s *attachedServer) death() string         { return s.life.reason }

// load loads over gRPC and asks for the model afterwards.
func (s *attachedServer) load(ctx context.Context, model string) error {
	if err := s.to.client.Load(ctx, model); err != nil {
		return err
	}
	return s.ready(ctx, model)
}

// ready says whether a model that others loaded is there.
func (s *attachedServer) ready(ctx context.Context, model string) error {
	ok, err := s.to.client.ModelReady(ctx, model, "")
	if err == nil && !ok {
		err = fmt.Errorf("the server at %s does not have it ready", s.to.at.GRPC)
	}
	return err
}

func (s *attachedServer) unload(ctx context.Context, model string) error {
	return unloaded(ctx, s.to.client.Stub, model)
}

// shutdown and kill leave the server alone.
func (s *attachedServer) shutdown(context.Context) error { return nil }
func (s *attachedServer) kill() error                    { return nil }

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
