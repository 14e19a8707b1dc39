// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package modelcontrol

import (
	"context"
	"errors"
	"path"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/control"
)

// own orders of conch.
type own struct{ control *control.Control }

// byClient is the author of what a client orders through Triton's protocol.
const byClient = "client"

// Load implements aggregate.Repository.
func (l own) Load(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	order, err := readLoad(model, parameters)
	if err != nil {
		return err
	}
	return loadStatus(ctx, model, l.control.Load(ctx, order, repo.Origin{Author: byClient}))
}

// loadStatus is Triton's answer to a load that came to err.
func loadStatus(ctx context.Context, model string, err error) error {
	var refused *driver.LoadError
	var asked interface{ GRPCStatus() *status.Status }
	var problem repo.Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && errors.As(refused.Err, &asked) && !refused.Hung:
		return asked.GRPCStatus().Err()
	case errors.As(err, &refused):
		return status.Errorf(codes.InvalidArgument, "load failed for model '%s': %v", model, refused)
	case errors.Is(err, repo.ErrInvalidModel) && errors.As(err, &problem) && (problem.NoVersion || problem.File == model):
		return status.Errorf(codes.InvalidArgument, "load failed for model '%s': at least one version must be available under the version policy of model '%s'\n", model, model)
	case errors.Is(err, repo.ErrInvalidModel) && errors.As(err, &problem) && path.Base(problem.File) != repo.ConfigFile:
		// Triton would never answer; the text has the form of its answers.
		return status.Errorf(codes.InvalidArgument, "load failed for model '%s': version %s is at UNAVAILABLE state: Internal: %v;\n", model, path.Base(problem.File), problem)
	case errors.Is(err, control.ErrNotFound), errors.Is(err, repo.ErrOverride), errors.Is(err, repo.ErrInvalidModel):
		return status.Errorf(codes.Internal, "failed to load '%s', failed to poll from model repository", model)
	}
	var start *apply.StartError
	if errors.As(err, &start) {
		return status.Errorf(codes.Internal, "failed to load '%s': %v", model, err)
	}
	return status.Errorf(code(ctx), "failed to load '%s': %v", model, err)
}

// Unload implements aggregate.Repository.
func (l own) Unload(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	dependents, err := readUnload(parameters)
	if err != nil {
		return err
	}
	if err := l.control.Unload(ctx, model, repo.Origin{Author: byClient}, dependents); err != nil {
		return status.Errorf(code(ctx), "failed to unload '%s': %v", model, err)
	}
	return nil
}

// code of a temporary failure, or of a caller whose context has ended.
func code(ctx context.Context) codes.Code {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Code()
	}
	return codes.Unavailable
}
