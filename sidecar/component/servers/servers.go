// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package servers is where Triton processes come from: the driver that conch.yaml
// names, a second one for scratch partitions, and what goes with servers that
// others run.
package servers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/component/cluster"
	"github.com/conch-serving/conch/sidecar/config"
)

// Options of New.
type Options struct {
	Config *config.Config
	Node   *policy.Node
	Store  *repo.Store
	// Credentials of the servers' gRPC; nil is in the clear.
	Credentials credentials.TransportCredentials
	MPS         mps.Daemon
	// Cluster is that of driver kubernetes, and nil with others. Leaving is called when somebody else ends the server of a partition there, NodesChanged when
	// its nodes are others than before, both in goroutines of the driver.
	Cluster      *cluster.Cluster
	Leaving      func(partition, reason string)
	NodesChanged func(reason string)
	Log          *slog.Logger
}

// Servers are the drivers of this conch.
type Servers struct {
	// Driver starts or finds the servers of partitions.
	Driver driver.Driver
	// Scratch starts servers to measure on; nil where conch starts none.
	Scratch driver.Driver
	// Others is nil unless others run the servers.
	Others *Others
	// Nodes are the machines with GPUs, as they are now.
	Nodes func() []*policy.Node
	// Pods is the driver where servers are Pods of conch's own; else nil.
	Pods *kubernetes.Driver
	// service is followed; nil unless the servers are behind one.
	service *kubernetes.Service
}

// Logs are what the cluster has of the servers' logs; nil where they are files of this machine, or others'.
func (s *Servers) Logs() func(ctx context.Context, partition string, lines int, follow bool) (io.ReadCloser, error) {
	if s.Pods == nil {
		return nil
	}
	return s.Pods.Log
}

// New makes the driver that conch.yaml names. It starts no server.
func New(ctx context.Context, o Options) (*Servers, error) {
	s, err := makeServers(ctx, o)
	if err == nil && s.Nodes == nil {
		s.Nodes = func() []*policy.Node { return []*policy.Node{o.Node} }
	}
	return s, err
}

func makeServers(ctx context.Context, o Options) (*Servers, error) {
	d, log := o.Config.Driver, o.Log.With("part", "driver")
	switch d.Kind {
	case config.DriverAttach:
		if d.Service != (config.Service{}) {
			return behindService(ctx, o)
		}
		others, err := attach(o.Config, o.Node, o.Store, o.Credentials, o.Log)
		if err != nil {
			return nil, err
		}
		nodes := func() []*policy.Node { return []*policy.Node{executing(o.Node, others.Driver.Known())} }
		return &Servers{Driver: others.Driver, Others: others, Nodes: nodes}, nil
	case config.DriverKubernetes:
		return inCluster(ctx, o)
	case config.DriverEmbedded:
		return &Servers{Driver: driver.NewEmbedded(driver.EmbeddedOptions{Stretch: d.Stretch, Logger: log})}, nil
	}
	options := driver.ProcessOptions{
		Server: d.TritonServer, BackendDir: d.BackendDirectory, Arguments: d.Arguments, Environment: d.Environment,
		Dir: filepath.Join(o.Config.State, "servers"), Stretch: d.Stretch, MPS: o.MPS, Logger: log,
		StartTimeout: d.StartTimeout.Std(), OrphanGrace: d.OrphanGrace.Std(),
		Credentials: o.Credentials,
	}
	partitions, err := driver.NewProcesses(options)
	if err != nil {
		return nil, err
	}
	// No later conch takes over a scratch server.
	options.Dir, options.OrphanGrace, options.Logger = filepath.Join(o.Config.State, "calibration", "servers"), time.Second, o.Log.With("part", "calibration")
	scratch, err := driver.NewProcesses(options)
	if err != nil {
		return nil, errors.Join(err, partitions.Close())
	}
	return &Servers{Driver: partitions, Scratch: scratch}, nil
}

// Run implements component.Component. Whoever started servers ends them before.
func (s *Servers) Run(ctx context.Context) error {
	<-ctx.Done()
	if s.service != nil {
		s.service.Close()
	}
	err := s.Driver.Close()
	if s.Scratch != nil {
		err = errors.Join(err, s.Scratch.Close())
	}
	return err
}
