// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package modelcontrol

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
)

// Attached gives clients Triton's explicit model control of servers that
// others run. While the placement is theirs, an order goes to every server that
// knows the model, as it came; else it is conch's own to load.
type Attached struct {
	aggregate.Repository
	Control *control.Control
	Driver  *driver.Attached
}

// Load implements aggregate.Repository.
func (l Attached) Load(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	if !l.Control.Given() {
		return l.Repository.Load(ctx, model, parameters)
	}
	return l.each(ctx, model, func(gpu string, client tritonpb.GRPCInferenceServiceClient) error {
		_, err := client.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: model, Parameters: maps.Clone(parameters)})
		if err == nil && len(parameters) > 0 {
			l.Driver.Ordered(gpu, model, true)
		}
		return err
	})
}

// Unload implements aggregate.Repository.
func (l Attached) Unload(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	if !l.Control.Given() {
		return l.Repository.Unload(ctx, model, parameters)
	}
	return l.each(ctx, model, func(gpu string, client tritonpb.GRPCInferenceServiceClient) error {
		_, err := client.RepositoryModelUnload(ctx, &tritonpb.RepositoryModelUnloadRequest{ModelName: model, Parameters: maps.Clone(parameters)})
		if err == nil {
			l.Driver.Ordered(gpu, model, false)
		}
		return err
	})
}

// each orders something of the servers whose repository has the model, or of all
// where none has: the servers say best what is wrong. It returns once conch serves
// what they serve then.
func (l Attached) each(ctx context.Context, model string, order func(gpu string, client tritonpb.GRPCInferenceServiceClient) error) error {
	type server struct {
		gpu    string
		client tritonpb.GRPCInferenceServiceClient
	}
	var having, all []server
	err := l.Driver.Each(ctx, func(ctx context.Context, s driver.EndpointState, client tritonpb.GRPCInferenceServiceClient) error {
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
	l.Driver.Look(ctx)
	if err := l.Control.Mirror(ctx, "a client's order about "+model); err != nil {
		return status.Errorf(codes.Unavailable, "%s: %v", model, err)
	}
	return nil
}
