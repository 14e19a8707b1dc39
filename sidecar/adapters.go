// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

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
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	ingresshttp "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/metrics"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// routes gives the dispatcher's route table to the parts that answer for all
// partitions as one server.
type routes struct {
	dispatcher *dispatch.Dispatcher
	control    *control.Control
	reconciler *apply.Reconciler
}

// Partitions implements aggregate.Partitions.
func (r routes) Partitions() []aggregate.Partition {
	table := r.dispatcher.Routes()
	if table == nil {
		return nil
	}
	up := map[string]bool{}
	for _, p := range r.dispatcher.Partitions() {
		up[p.Partition.ID] = p.Up && !p.Draining
	}
	all := make([]aggregate.Partition, 0, len(table.Partitions))
	at := map[string]int{}
	for _, p := range table.Partitions {
		at[p.ID] = len(all)
		all = append(all, aggregate.Partition{
			ID: p.ID, GRPC: p.Endpoint.GRPC, HTTP: p.Endpoint.HTTP, Up: up[p.ID],
			WarmedUp: func(model string) []*tritonpb.ModelStatistics { return r.reconciler.WarmedUp(p.ID, model) },
		})
	}
	for name, m := range table.Models {
		for _, placement := range m.Places {
			if i, ok := at[placement.Partition]; ok {
				all[i].Models = append(all[i].Models, name)
			}
		}
	}
	return all
}

// MetricsPartitions implements metrics.Partitions.
func (r routes) MetricsPartitions() []metrics.Partition {
	var all []metrics.Partition
	for _, p := range r.dispatcher.Partitions() {
		if p.Up {
			all = append(all, metrics.Partition{ID: p.Partition.ID, Endpoint: p.Partition.Endpoint.Metrics})
		}
	}
	return all
}

// Lookup implements aggregate.Models.
func (r routes) Lookup(name string) (aggregate.Model, bool) {
	table := r.dispatcher.Routes()
	if table == nil {
		return aggregate.Model{}, false
	}
	if m := table.Models[name]; m != nil {
		known := aggregate.Model{Config: m.Config, Written: m.Written, Versions: m.Versions, Internal: m.Internal, Cold: m.Cold}
		if m.Membership != nil {
			known.Group = m.Membership.Group
		}
		return known, true
	}
	if absent, ok := table.Absent[name]; ok {
		return aggregate.Model{Absent: absent}, true
	}
	if n := table.Names[name]; n != nil && n.Config != nil {
		return aggregate.Model{Config: n.Config, Versions: n.Versions, ServedBy: servedBy(n)}, true
	}
	return aggregate.Model{}, false
}

// servedBy are the models that a name may be served by.
func servedBy(n *names.Name) []string {
	if n.Alias != nil {
		return []string{n.Alias.Model}
	}
	all := make([]string, 0, len(n.App.Variants))
	for _, v := range n.App.Variants {
		if v.State == names.Active {
			all = append(all, v.Model)
		}
	}
	return all
}

// Ready implements aggregate.Models.
func (r routes) Ready() error { return r.dispatcher.Ready() }

// Repository implements aggregate.Models.
func (r routes) Repository() []aggregate.Entry {
	absent := r.control.Absent()
	var all []aggregate.Entry
	for _, name := range r.control.Names() {
		a := absent[name]
		all = append(all, aggregate.Entry{Name: name, Versions: a.Versions, Reason: a.Reason})
	}
	return all
}

// Count implements aggregate.Counts.
func (r routes) Count(model, version string) (aggregate.Count, bool) {
	for _, c := range r.dispatcher.VersionCounts(model) {
		if c.Version == version {
			return aggregate.Count{
				Success: c.Success, Fail: c.Failed, SuccessTime: c.SuccessTime, FailTime: c.FailTime, QueueTime: c.QueueTime, Ran: c.Ran, Executions: c.Executions, Rows: c.Rows, Asked: c.Asked,
			}, true
		}
	}
	return aggregate.Count{}, false
}

// MetricsRequests implements metrics.Requests.
func (r routes) MetricsRequests() []metrics.Series {
	all := r.dispatcher.Series()
	series := make([]metrics.Series, len(all))
	for i, s := range all {
		series[i] = metrics.Series(s)
	}
	return series
}

// Pick implements http.Picker.
func (r routes) Pick(ctx context.Context, model string) (s ingresshttp.Server, done func(error), err error) {
	p, done, err := r.dispatcher.Pick(ctx, model)
	return ingresshttp.Server{Partition: p.ID, Endpoint: p.Endpoint.HTTP}, done, err
}

// lender answers requests that their owner frees: the dispatcher takes over a
// reference with every request, so it is given one of its own.
type lender struct{ dispatcher *dispatch.Dispatcher }

// Infer implements http.Inferer.
func (l lender) Infer(ctx context.Context, r *batch.Request) (*batch.Response, error) {
	r.Ref()
	return l.dispatcher.Infer(ctx, r)
}

// loader gives clients Triton's explicit model control.
type loader struct{ control *control.Control }

// byClient is the author of what a client orders through Triton's protocol.
const byClient = "client"

// Load implements aggregate.Repository.
func (l loader) Load(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	order, err := readLoad(model, parameters)
	if err != nil {
		return err
	}
	return loadStatus(ctx, model, l.control.Load(ctx, order, byClient))
}

// loadStatus is Triton's answer to a load that came to err.
func loadStatus(ctx context.Context, model string, err error) error {
	var refused *driver.LoadError
	var own interface{ GRPCStatus() *status.Status }
	var problem repo.Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && errors.As(refused.Err, &own) && !refused.Hung:
		return own.GRPCStatus().Err()
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
func (l loader) Unload(ctx context.Context, model string, parameters map[string]*tritonpb.ModelRepositoryParameter) error {
	dependents, err := readUnload(parameters)
	if err != nil {
		return err
	}
	if err := l.control.Unload(ctx, model, byClient, dependents); err != nil {
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
