// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package routes gives the dispatcher's route table to the parts that answer for
// all partitions as one server.
package routes

import (
	"context"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	ingresshttp "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/metrics"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// Routes joins the dispatcher with control and the reconciler, which do not know each other: it is what clients' fronts ask for partitions, models and
// orders.
type Routes struct {
	Dispatcher *dispatch.Dispatcher
	Control    *control.Control
	Reconciler *apply.Reconciler
}

// Partitions implements aggregate.Partitions.
func (r Routes) Partitions() []aggregate.Partition {
	table := r.Dispatcher.Routes()
	if table == nil {
		return nil
	}
	seen := map[string]router.PartitionState{}
	for _, p := range r.Dispatcher.Partitions() {
		if _, inForce := seen[p.Partition.ID]; !inForce { // those that drain come last
			seen[p.Partition.ID] = p
		}
	}
	all := make([]aggregate.Partition, 0, len(table.Partitions))
	at := map[string]int{}
	for _, p := range table.Partitions {
		at[p.ID] = len(all)
		all = append(all, aggregate.Partition{
			ID: p.ID, HTTP: p.Endpoint.HTTP, Up: seen[p.ID].Up && !seen[p.ID].Draining, Conn: seen[p.ID].Conn,
			WarmedUp: func(model string) []*tritonpb.ModelStatistics { return r.Reconciler.WarmedUp(p.ID, model) },
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
func (r Routes) MetricsPartitions() []metrics.Partition {
	var all []metrics.Partition
	for _, p := range r.Dispatcher.Partitions() {
		if p.Up {
			all = append(all, metrics.Partition{ID: p.Partition.ID, Endpoint: p.Partition.Endpoint.Metrics})
		}
	}
	return all
}

// Lookup implements aggregate.Models.
func (r Routes) Lookup(name string) (aggregate.Model, bool) {
	table := r.Dispatcher.Routes()
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
	all := make([]string, 0, len(n.App.Variants))
	for _, v := range n.App.Variants {
		if v.State == names.Active {
			all = append(all, v.Model)
		}
	}
	return all
}

// Ready implements aggregate.Models.
func (r Routes) Ready() error { return r.Dispatcher.Ready() }

// Repository implements aggregate.Models.
func (r Routes) Repository() []aggregate.Entry {
	absent := r.Control.Absent()
	var all []aggregate.Entry
	for _, name := range r.Control.Names() {
		a := absent[name]
		all = append(all, aggregate.Entry{Name: name, Versions: a.Versions, Reason: a.Reason})
	}
	return all
}

// Count implements aggregate.Counts.
func (r Routes) Count(model, version string) (aggregate.Count, bool) {
	for _, c := range r.Dispatcher.VersionCounts(model) {
		if c.Version == version {
			return aggregate.Count{
				Success: c.Success, Fail: c.Failed, SuccessTime: c.SuccessTime, FailTime: c.FailTime, QueueTime: c.QueueTime, Ran: c.Ran, Executions: c.Executions, Rows: c.Rows, Asked: c.Asked,
				Walked: c.Walked, LastWalk: c.LastWalk,
			}, true
		}
	}
	return aggregate.Count{}, false
}

// MetricsRequests implements metrics.Requests.
func (r Routes) MetricsRequests() []metrics.Series {
	all := r.Dispatcher.Series()
	series := make([]metrics.Series, len(all))
	for i, s := range all {
		series[i] = metrics.Series(s)
	}
	return series
}

// Pick implements http.Picker.
func (r Routes) Pick(ctx context.Context, model string) (s ingresshttp.Server, done func(error), err error) {
	p, done, err := r.Dispatcher.Pick(ctx, model)
	return ingresshttp.Server{Partition: p.ID, Endpoint: p.Endpoint.HTTP}, done, err
}
