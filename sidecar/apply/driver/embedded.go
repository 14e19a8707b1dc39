// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/plugins/policy"
)

// EmbeddedOptions of NewEmbedded. The zero value is usable.
type EmbeddedOptions struct {
	// Stretch multiplies emulated times; 0 means 1.
	Stretch float64
	Logger  *slog.Logger
}

// Embedded runs a minitriton inside this process for every partition.
// Partitions of one GPU share one emulated device.
type Embedded struct {
	o EmbeddedOptions

	mu   sync.Mutex
	gpus map[string]*minitriton.GPU
}

// NewEmbedded makes the driver "embedded".
func NewEmbedded(o EmbeddedOptions) *Embedded {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Embedded{o: o, gpus: map[string]*minitriton.GPU{}}
}

// Repository is empty: every partition gets a directory of its own.
func (d *Embedded) Repository(string) string { return "" }

// Lasting is false: the servers end with conch.
func (d *Embedded) Lasting() bool { return false }

// Hash implements Driver: device and share.
func (d *Embedded) Hash(p *policy.Partition, g *policy.GPU) string {
	return fmt.Sprintf("%s-%s-%d-%d", p.GetNode(), g.GetId(), p.GetThreadPercentage(), p.GetMemoryLimitBytes())
}

// Find implements Driver: what ran inside an earlier conch ended with it.
func (d *Embedded) Find(context.Context) ([]Server, error) { return nil, nil }

// Close implements Driver.
func (d *Embedded) Close() error { return nil }

// Start starts a minitriton on free ports of the loopback interface.
func (d *Embedded) Start(ctx context.Context, spec Spec) (Server, error) {
	d.mu.Lock()
	gpu := d.gpus[spec.GPU.GetId()]
	if gpu == nil {
		gpu = minitriton.NewGPU(spec.GPU.GetId())
		d.gpus[spec.GPU.GetId()] = gpu
	}
	d.mu.Unlock()
	s, err := minitriton.New(minitriton.Options{
		Repository: spec.RepositoryDir, Control: minitriton.ControlExplicit,
		Partition: minitriton.Partition{ID: spec.Partition.GetId(), GPU: gpu, Share: int(spec.Partition.GetThreadPercentage())},
		Stretch:   d.o.Stretch, Logger: d.o.Logger,
	})
	if err != nil {
		return nil, err
	}
	listeners, err := minitriton.Loopback()
	if err != nil {
		return nil, err
	}
	// The server lives longer than the call that starts it.
	if err := s.Start(context.WithoutCancel(ctx), listeners); err != nil {
		listeners.Close()
		return nil, err
	}
	c, err := dial(s.Endpoint().GRPC, nil)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &embeddedServer{calls: c, s: s, spec: spec, began: time.Now()}, nil
}

// embeddedServer is a minitriton.
type embeddedServer struct {
	calls
	s     *minitriton.Server
	spec  Spec
	began time.Time
}

func (e *embeddedServer) Spec() Spec            { return e.spec }
func (e *embeddedServer) Endpoint() Endpoint    { return Endpoint(e.s.Endpoint()) }
func (e *embeddedServer) Begin() time.Time      { return e.began }
func (e *embeddedServer) Log() string           { return "" }
func (e *embeddedServer) Done() <-chan struct{} { return e.s.Done() }
func (e *embeddedServer) Death() string         { return "minitriton stopped" }

// Load implements Server.
func (e *embeddedServer) Load(ctx context.Context, model string) error {
	return loadIn(ctx, e, model, func(ctx context.Context) error {
		if err := e.s.Load(ctx, model); err != nil {
			return fmt.Errorf("minitriton: %w", err)
		}
		return nil
	})
}

// Unload implements Server.
func (e *embeddedServer) Unload(ctx context.Context, model string) error {
	if err := e.s.Unload(ctx, model); err != nil {
		return fmt.Errorf("minitriton: %w", err)
	}
	return nil
}

// Stop implements Server.
func (e *embeddedServer) Stop(ctx context.Context) error {
	return errors.Join(e.s.Shutdown(ctx), e.s.Close(), e.client.Close())
}

// Kill implements Server.
func (e *embeddedServer) Kill(context.Context) error {
	return errors.Join(e.s.Close(), e.client.Close())
}

// Leave implements Server: it cannot live without conch.
func (e *embeddedServer) Leave() error { return e.Kill(context.Background()) }
