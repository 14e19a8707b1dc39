// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/attached"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
)

// servers are those that others run, put together: the driver that reaches them,
// the catalogue of what they serve, and the guard of their repositories (nil where
// conch writes none).
type servers struct {
	driver    *driver.Attached
	catalogue *attached.Catalogue
	files     *attached.Files
}

// unknownGPU is the type of a GPU behind an endpoint whose GPU is not declared.
const unknownGPU = "unknown"

// attach makes the servers of driver attach. GPUs stand for their devices, one
// each, in their order.
func attach(c *config.Config, node *policy.Node, store *repo.Store, how credentials.TransportCredentials, log *slog.Logger) (*servers, error) {
	var endpoints []driver.AttachEndpoint
	var dirs []string
	for i, e := range c.Driver.Endpoints {
		endpoints = append(endpoints, driver.AttachEndpoint{
			GPU: node.GetGpus()[i].GetId(), Repository: e.Repository,
			Endpoint: driver.Endpoint{GRPC: e.GRPC, HTTP: open(e.HTTP), Metrics: open(e.Metrics)},
		})
		if e.Repository != "" {
			dirs = append(dirs, filepath.Clean(e.Repository))
			endpoints[i].Repository = dirs[len(dirs)-1]
		}
	}
	d, err := driver.NewAttached(driver.AttachOptions{
		Endpoints: endpoints, Dir: filepath.Join(c.State, "attached"), Health: health(c), Credentials: how, Logger: log.With("part", "driver"),
	})
	if err != nil {
		return nil, err
	}
	s := &servers{driver: d}
	if len(dirs) > 0 {
		s.files = attached.NewFiles(store, dirs, d.Reload)
	}
	s.catalogue = attached.New(node.GetName(), d, s.files)
	return s, nil
}

// open is an address, or nothing where the door is off.
func open(address string) string {
	if address == config.Off {
		return ""
	}
	return address
}

func health(c *config.Config) driver.Health {
	return driver.Health{Period: c.Driver.Probe.Period.Std(), Deadline: c.Driver.Probe.Deadline.Std()}
}

// devices are the GPUs that stand for endpoints: those that conch.yaml lists, or
// ones of which nothing is known.
func devices(c *config.Config) []*policy.GPU {
	if !c.GPUs.Auto {
		return listed(c.GPUs.List, nil)
	}
	all := make([]*policy.GPU, len(c.Driver.Endpoints))
	for i := range all {
		all[i] = &policy.GPU{Id: config.GPUID(i), Type: unknownGPU}
	}
	return all
}

// attachedLoader gives clients Triton's explicit model control of servers that
// others run. While the placement is theirs, an order goes to every server that
// knows the model, as it came; else it is conch's own to load.
type attachedLoader struct {
	aggregate.Repository
	control *control.Control
	driver  *driver.Attached
}

// Load implements aggregate.Repository.
func (l attachedLoader) Load(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	if !l.control.Given() {
		return l.Repository.Load(ctx, model, parameters)
	}
	return l.each(ctx, model, func(gpu string, client tritonpb.GRPCInferenceServiceClient) error {
		_, err := client.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: model, Parameters: maps.Clone(parameters)})
		if err == nil && len(parameters) > 0 {
			l.driver.Ordered(gpu, model, true)
		}
		return err
	})
}

// Unload implements aggregate.Repository.
func (l attachedLoader) Unload(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	if !l.control.Given() {
		return l.Repository.Unload(ctx, model, parameters)
	}
	return l.each(ctx, model, func(gpu string, client tritonpb.GRPCInferenceServiceClient) error {
		_, err := client.RepositoryModelUnload(ctx, &tritonpb.RepositoryModelUnloadRequest{ModelName: model, Parameters: maps.Clone(parameters)})
		if err == nil {
			l.driver.Ordered(gpu, model, false)
		}
		return err
	})
}

// each orders something of the servers whose repository has the model, or of all
// where none has: the servers say best what is wrong. It returns once conch serves
// what they serve then.
func (l attachedLoader) each(ctx context.Context, model string, order func(gpu string, client tritonpb.GRPCInferenceServiceClient) error) error {
	type server struct {
		gpu    string
		client tritonpb.GRPCInferenceServiceClient
	}
	var having, all []server
	err := l.driver.Each(ctx, func(ctx context.Context, s driver.EndpointState, client tritonpb.GRPCInferenceServiceClient) error {
		index, err := client.RepositoryIndex(ctx, &tritonpb.RepositoryIndexRequest{})
		if err != nil {
			return err
		}
		all = append(all, server{s.GPU, client})
		if slices.ContainsFunc(index.GetModels(), func(m *tritonpb.RepositoryIndexResponse_ModelIndex) bool { return m.GetName() == model }) {
			having = append(having, server{s.GPU, client})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(having) == 0 {
		having = all
	}
	if len(having) == 0 {
		return status.Error(codes.Unavailable, "no Triton server is up")
	}
	for _, s := range having {
		if err := order(s.gpu, s.client); err != nil {
			return err
		}
	}
	l.driver.Look(ctx)
	if err := l.control.Mirror(ctx, "a client's order about "+model); err != nil {
		return status.Errorf(codes.Unavailable, "%s: %v", model, err)
	}
	return nil
}
