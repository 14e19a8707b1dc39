// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package partitions makes the reconciler, which starts and ends Triton processes
// and loads their models, and ends it: with the processes, or leaving them to the
// next conch.
package partitions

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/component/servers"
	"github.com/conch-serving/conch/sidecar/component/state"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/observe"
)

// stopServers bounds the end of the Triton processes, after the drain that
// conch.yaml bounds.
const stopServers = 20 * time.Second

// Options of New.
type Options struct {
	Config   *config.Config
	State    *state.State
	Servers  *servers.Servers
	Router   apply.Router
	Recorder *observe.Recorder
	MPS      mps.Daemon
	// Credentials of Triton's gRPC; nil is in the clear.
	Credentials credentials.TransportCredentials
	// Replay tells a server that has started what clients have told the others.
	Replay func(ctx context.Context, server grpc.ClientConnInterface) error
	// Hooks are whom the reconciler reports to.
	Hooks control.Hooks
	// Leave reports whether servers of conch's own go on when it stops.
	Leave func() bool
	// Fence returns an error while servers may be another conch's; nil where there is no other.
	Fence func() error
	Log   *slog.Logger
}

// Partitions are the servers of the desired state.
type Partitions struct {
	*apply.Reconciler
	leave func() bool
	log   *slog.Logger
}

// New makes the reconciler. It starts nothing before a plan is desired.
func New(o Options) (*Partitions, error) {
	files := apply.Repository(o.State.Repository)
	if others := o.Servers.Others; others != nil && others.Files != nil {
		files = others.Files
	}
	options := apply.Options{
		Dir: directory(o.Config), Store: apply.NewStore(o.State.Store), Driver: o.Servers.Driver, Repository: files, Router: o.Router,
		Recorder: control.Samples(o.Recorder), MPS: o.MPS, Logger: o.Log.With("part", "apply"),
		WarmUp: func(ctx context.Context, address string, m *tritonpb.ModelConfig, w warmup.Options) (warmup.Result, error) {
			w.Credentials = o.Credentials
			return warmup.Run(ctx, address, m, w)
		},
		LoadTimeout: o.Config.Driver.LoadTimeout.Std(), Executions: o.Config.Driver.Executions, Health: servers.Health(o.Config),
		Settings:    func(ctx context.Context, at driver.Endpoint) error { return replay(ctx, o, at) },
		OnAction:    o.Hooks.ActionDone,
		OnPartition: func(e driver.Event) { o.Hooks.PartitionChanged(e.Partition, e.Up, changed(e)) },
		Fence:       o.Fence, OnFault: o.Hooks.MPSFault, OnGroupFault: o.Hooks.GroupFault, OnTakeOver: o.Hooks.TakenOver,
	}
	if o.MPS.Running && !o.MPS.Elsewhere {
		options.Faulted = o.MPS.Faulted
	}
	r, err := apply.New(options)
	if err != nil {
		return nil, err
	}
	return &Partitions{r, o.Leave, o.Log}, nil
}

// directory is where the servers have their models: servers elsewhere have a volume of conch's at the same path.
func directory(c *config.Config) string {
	if c.Driver.Kind == config.DriverKubernetes {
		return filepath.Join(c.Driver.Kubernetes.Models.Path, "partitions")
	}
	return filepath.Join(c.State, "partitions")
}

// replay connects to a server that has started.
func replay(ctx context.Context, o Options, at driver.Endpoint) error {
	options := []grpc.DialOption{grpc.WithNoProxy()}
	if o.Credentials != nil {
		options = append(options, grpc.WithTransportCredentials(o.Credentials))
	}
	client, err := triton.Dial(at.GRPC, options...)
	if err != nil {
		return err
	}
	return errors.Join(o.Replay(ctx, client.Conn()), client.Close())
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

// Run implements component.Component. The request path is drained before ctx ends.
func (p *Partitions) Run(ctx context.Context) error {
	<-ctx.Done()
	ending, cancel := context.WithTimeout(context.Background(), stopServers)
	defer cancel()
	if err := p.Close(ending, p.leave()); err != nil {
		p.log.Warn("partitions did not end cleanly", "error", err)
	}
	return nil
}
