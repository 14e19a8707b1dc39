// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/minitriton"
)

// EmbeddedOptions of NewEmbedded. The zero value is usable.
type EmbeddedOptions struct {
	// Stretch multiplies emulated times; 0 means 1.
	Stretch float64
	// LoadTimeout bounds one load (0 means a minute), DrainTimeout the requests that
	// a server that stops has accepted (30s).
	LoadTimeout, DrainTimeout time.Duration
	Backoff                   Backoff
	// Clock is minitriton's; nil means real time.
	Clock  minitriton.Clock
	Logger *slog.Logger
}

// Embedded runs a minitriton inside this process for every partition.
// Partitions of one GPU share one emulated device.
type Embedded struct {
	o EmbeddedOptions

	fleet fleet

	mu   sync.Mutex
	gpus map[string]*minitriton.GPU
}

// NewEmbedded makes the driver "embedded".
func NewEmbedded(o EmbeddedOptions) *Embedded {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.LoadTimeout <= 0 {
		o.LoadTimeout = time.Minute
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = 30 * time.Second
	}
	return &Embedded{o: o, gpus: map[string]*minitriton.GPU{}}
}

// Kind is "embedded".
func (d *Embedded) Kind() string { return "embedded" }

// Repository is empty: every partition gets a directory of its own.
func (d *Embedded) Repository(string) string { return "" }

// Lasting is false: the servers end with conch.
func (d *Embedded) Lasting() bool { return false }

// Start starts a minitriton on free ports of the loopback interface.
func (d *Embedded) Start(ctx context.Context, spec Spec) (Process, error) {
	d.mu.Lock()
	gpu := d.gpus[spec.GPU.GetId()]
	if gpu == nil {
		gpu = minitriton.NewGPU(spec.GPU.GetId())
		d.gpus[spec.GPU.GetId()] = gpu
	}
	d.mu.Unlock()

	var address Endpoint // kept over restarts, so that callers find the next life
	launch := func(ctx context.Context) (server, error) {
		s, err := minitriton.New(minitriton.Options{
			Repository: spec.RepositoryDir, Control: minitriton.ControlExplicit,
			Partition: minitriton.Partition{ID: spec.Partition.GetId(), GPU: gpu, Share: int(spec.Partition.GetThreadPercentage())},
			Stretch:   d.o.Stretch, Clock: d.o.Clock, Logger: d.o.Logger,
		})
		if err != nil {
			return nil, err
		}
		listeners, err := listen(address)
		if err != nil {
			return nil, err
		}
		// The server lives longer than the call that starts it.
		if err := s.Start(context.WithoutCancel(ctx), listeners); err != nil {
			listeners.Close()
			return nil, err
		}
		address = Endpoint(s.Endpoint())
		return embeddedServer{s}, nil
	}
	return d.fleet.start(ctx, spec, launch, d.o.Backoff, limits{load: d.o.LoadTimeout, drain: d.o.DrainTimeout}, d.o.Logger, nil)
}

// listen opens the addresses of the last life, or free ones.
func listen(last Endpoint) (minitriton.Listeners, error) {
	if last != (Endpoint{}) {
		if l, err := minitriton.Listen(last.GRPC, last.HTTP, last.Metrics); err == nil {
			return l, nil
		}
	}
	return minitriton.Loopback()
}

// Close stops what still runs, without waiting for its requests.
func (d *Embedded) Close() error {
	d.fleet.close()
	return nil
}

// embeddedServer is one life of a minitriton.
type embeddedServer struct{ s *minitriton.Server }

func (e embeddedServer) endpoint() Endpoint    { return Endpoint(e.s.Endpoint()) }
func (e embeddedServer) done() <-chan struct{} { return e.s.Done() }
func (e embeddedServer) death() string         { return "minitriton stopped" }

func (e embeddedServer) load(ctx context.Context, model string) error {
	if err := e.s.Load(ctx, model); err != nil {
		return fmt.Errorf("minitriton: %w", err)
	}
	return nil
}

func (e embeddedServer) unload(ctx context.Context, model string) error {
	if err := e.s.Unload(ctx, model); err != nil {
		return fmt.Errorf("minitriton: %w", err)
	}
	return nil
}

func (e embeddedServer) shutdown(ctx context.Context) error { return e.s.Shutdown(ctx) }
func (e embeddedServer) kill() error                        { return e.s.Close() }
