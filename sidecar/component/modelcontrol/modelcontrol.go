// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package modelcontrol is Triton's explicit model control as clients have it:
// loads and unloads become orders to conch, or go to the servers that others run.
package modelcontrol

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
)

// New is what clients may order, as far as clients (modelControl.clients of
// conch.yaml) allows. Others is the driver of servers that others run, nil where
// they are conch's own.
func New(c *control.Control, others *driver.Attached, clients string) aggregate.Repository {
	orders := aggregate.Repository(own{c})
	if others != nil {
		orders = Attached{Repository: orders, Control: c, Driver: others}
	}
	return allowed{orders, clients}
}

// allowed lets clients order as much as conch.yaml allows
// (modelControl.clients).
type allowed struct {
	aggregate.Repository
	clients string
}

// errNoModelControl is Triton's answer (2.51) to loads and unloads in the mode
// --model-control-mode=none, whatever the model.
var errNoModelControl = status.Error(codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled")

// Load implements aggregate.Repository. As in Triton, what is no load at all is
// refused before it is asked whether loads are allowed.
func (c allowed) Load(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	order, err := readLoad(model, parameters)
	switch {
	case err != nil:
		return err
	case c.clients == config.ClientsOff:
		return errNoModelControl
	case c.clients == config.ClientsOn && (order.Config != nil || len(order.Files) > 0):
		return status.Errorf(codes.InvalidArgument, "failed to load '%s': clients may not bring a config or files (modelControl.clients is %s)", model, c.clients)
	}
	return c.Repository.Load(ctx, model, parameters)
}

// Unload implements aggregate.Repository.
func (c allowed) Unload(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	if _, err := readUnload(parameters); err != nil {
		return err
	}
	if c.clients == config.ClientsOff {
		return errNoModelControl
	}
	return c.Repository.Unload(ctx, model, parameters)
}

// readLoad reads the parameters of a load. The error is Triton's.
func readLoad(model string, parameters map[string]*tritonpb.ModelRepositoryParameter) (repo.Order, error) {
	order := repo.Order{Model: model}
	for name, p := range parameters {
		file, isFile := strings.CutPrefix(name, "file:")
		switch {
		case name == "config":
			text, ok := p.GetParameterChoice().(*tritonpb.ModelRepositoryParameter_StringParam)
			if !ok {
				return order, status.Error(codes.InvalidArgument, "invalid value type for load parameter 'config', expected string_param.")
			}
			order.Config = &text.StringParam
		case isFile:
			content, ok := p.GetParameterChoice().(*tritonpb.ModelRepositoryParameter_BytesParam)
			if !ok {
				return order, status.Errorf(codes.InvalidArgument, "invalid value type for load parameter '%s', expected bytes_param.", name)
			}
			if order.Files == nil {
				order.Files = map[string][]byte{}
			}
			order.Files[file] = content.BytesParam
		default:
			return order, status.Errorf(codes.InvalidArgument, "unrecognized load parameter '%s'.", name)
		}
	}
	return order, nil
}

// readUnload reads the parameters of an unload. Triton ignores those that it does
// not know.
func readUnload(parameters map[string]*tritonpb.ModelRepositoryParameter) (dependents bool, err error) {
	p, set := parameters["unload_dependents"]
	if _, flag := p.GetParameterChoice().(*tritonpb.ModelRepositoryParameter_BoolParam); set && !flag {
		return false, status.Error(codes.InvalidArgument, "invalid value type for 'unload_dependents' parameter, expected bool_param.")
	}
	return p.GetBoolParam(), nil
}
