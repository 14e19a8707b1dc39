// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/conditions"
)

// GPUs implements API.
func (v view) GPUs(context.Context) ([]api.GPU, error) {
	return GPUs(v.control.Look()), nil
}

// Partitions implements API.
func (v view) Partitions(context.Context) ([]api.Partition, error) {
	return partitions(v.control.Look()), nil
}

// Partition implements API.
func (v view) Partition(_ context.Context, id string) (api.Partition, error) {
	l := v.control.Look()
	for _, p := range l.Plan.GetPartitions() {
		if p.GetId() == id {
			return partition(l, p), nil
		}
	}
	return api.Partition{}, coded(fmt.Errorf("%w: the serving plan has no partition %q; tritonctl partition ls shows those there are", control.ErrNotFound, id))
}

// GPUs are the devices as operators see them, with the partitions of the serving plan;
// the CPUs of a node on which models may run are the last of them, "cpu".
func GPUs(l control.Look) []api.GPU {
	all := []api.GPU{}
	type host struct{ node, gpu string }
	on := make(map[host][]*policy.Partition) // in the plan's order; a partition without a node is on any that has its GPU
	for _, p := range l.Plan.GetPartitions() {
		on[host{p.GetNode(), p.GPU()}] = append(on[host{p.GetNode(), p.GPU()}], p)
	}
	for _, n := range l.Nodes {
		for _, g := range n.GetGpus() {
			gpu := api.GPU{
				ID: g.GetId(), Node: n.GetName(), Type: g.GetType(), MemoryBytes: g.GetMemoryBytes(),
				Emulated: g.GetEmulated(), SharesEnforced: g.GetSharesEnforced(), Partitions: []api.Partition{}, Unavailable: unavailable(g),
			}
			if cordon, cordoned := l.Cordons[g.GetId()]; cordoned {
				gpu.Cordon = &cordon
			}
			here := on[host{n.GetName(), g.GetId()}]
			if n.GetName() != "" {
				here = slices.Concat(here, on[host{"", g.GetId()}])
			}
			for _, p := range here {
				gpu.Partitions = append(gpu.Partitions, partition(l, p))
			}
			all = append(all, gpu)
		}
		if cpu := n.GetCpu(); cpu != nil {
			unit := api.GPU{ID: "cpu", Node: n.GetName(), Type: cpu.GetType(), MemoryBytes: cpu.GetMemoryBytes(), Emulated: cpu.GetEmulated(), Partitions: []api.Partition{}}
			for _, p := range on[host{n.GetName(), ""}] {
				if p.OnCPU() {
					unit.Partitions = append(unit.Partitions, partition(l, p))
				}
			}
			all = append(all, unit)
		}
	}
	return all
}

// unavailable is why plans may not use a GPU; empty where they may.
func unavailable(g *policy.GPU) string {
	if !g.GetUnavailable() {
		return ""
	}
	return cmp.Or(g.GetUnavailableReason(), "for no reason that is known")
}

// partitions are those of the serving plan, by GPU, then the old servers that are to
// go.
func partitions(l control.Look) []api.Partition {
	all := each(l.Plan.GetPartitions(), func(p *policy.Partition) api.Partition { return partition(l, p) })
	for _, s := range l.Retiring {
		old := api.Partition{ID: s.ID, Retiring: true, Models: []string{}, Conditions: []api.Condition{}}
		observed(&old, s)
		all = append(all, old)
	}
	return all
}

func partition(l control.Look, p *policy.Partition) api.Partition {
	out := api.Partition{
		ID: p.GetId(), GPU: p.Hosts(), ThreadPercentage: int(p.GetThreadPercentage()), MemoryLimitBytes: p.GetMemoryLimitBytes(),
		Rank: int(p.GetRank()), Reason: "not started", Serving: []string{},
		BusyShare: l.BusyShares[p.GetId()], Conditions: []api.Condition{},
		Models: each(p.GetInstances(), func(i *policy.Instance) string { return i.GetModel() }),
	}
	if s, ok := l.Servers[p.GetId()]; ok {
		observed(&out, s)
		out.Conditions = l.Conditions.Of(conditions.Partition, p.GetId())
	}
	return out
}

// observed writes down what is known of a partition's server.
func observed(out *api.Partition, s apply.PartitionState) {
	out.Up, out.Reason, out.Restarts, out.Started, out.Log = s.Up, s.Reason, s.Restarts, s.Begin, s.Log
	out.GRPC, out.HTTP, out.Metrics = s.Endpoint.GRPC, s.Endpoint.HTTP, s.Endpoint.Metrics
	out.Executions = s.Executions
	out.SharesEnforced, out.ShareReason = s.SharesEnforced, s.ShareReason
	out.Serving = append([]string{}, s.Models...)
}
