// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// table is the route table of a target whose partitions are served by the given
// processes. Models that the snapshot knows and the plan does not place are in
// it with no placement, so that they are refused and not unknown. Models that
// the snapshot leaves out although nothing is wrong with them are unloaded or
// would not load.
func table(t *Target, running map[string]*running) *router.Table {
	routes := &router.Table{Revision: t.Plan.GetSnapshotRevision(), Models: map[string]*router.Model{}, Absent: map[string][]string{}}
	for _, m := range t.Revision.Models {
		if m.Config != nil && m.Err() == nil {
			routes.Absent[m.Name] = versions(m)
		}
	}
	for _, m := range t.Snapshot.GetModels() {
		files := t.Revision.Model(m.GetName())
		if files == nil || files.Config == nil {
			continue
		}
		route := &router.Model{
			Name: m.GetName(), Config: files.Config, Written: files.Written, Revision: m.GetRevision(), SLO: time.Duration(m.GetSloUs()) * time.Microsecond, Late: m.GetLate(),
		}
		route.Batchable, route.PassThroughReason = repo.Batchable(files.Config)
		if t.PassThrough != "" {
			route.Batchable, route.PassThroughReason = false, t.PassThrough
		}
		route.Versions = versions(files)
		routes.Models[m.GetName()] = route
		delete(routes.Absent, m.GetName())
	}
	for _, d := range t.Plan.GetDispatch() {
		if m := routes.Models[d.GetModel()]; m != nil {
			m.Discipline, m.Parameters, m.DropPolicy = d.GetDiscipline(), maps.Clone(d.GetParameters()), d.GetDropPolicy()
		}
	}
	for _, p := range t.Plan.GetPartitions() {
		r := running[p.GetId()]
		if r == nil {
			continue
		}
		routes.Partitions = append(routes.Partitions, &router.Partition{
			ID: p.GetId(), GPU: p.GPU(), GPUType: r.gpu.GetType(), ThreadPercentage: p.GetThreadPercentage(), Rank: int(p.GetRank()),
			Endpoint: router.Endpoint(r.endpoint),
		})
		for _, in := range p.GetInstances() {
			m := routes.Models[in.GetModel()]
			if m == nil || slices.Contains(r.missing, in.GetModel()) {
				continue
			}
			m.Places = append(m.Places, router.Place{Partition: p.GetId(), MaxBatch: int(in.GetMaxBatch())})
		}
	}
	return routes
}

// versions are those that are served of a model, ascending.
func versions(m *repo.Model) []string {
	var all []string
	for _, v := range repo.ServedVersions(m.Config, m.Versions) {
		all = append(all, strconv.FormatInt(v, 10))
	}
	return all
}

// narrow limits the batches of a serving table to what both the old files and
// the new ones take, for the models that are about to be loaded again. It is
// nil where every batch that the old files take suits the new ones.
func narrow(old *router.Table, next *repo.Revision, reloads map[string]bool) *router.Table {
	narrowed := *old
	narrowed.Models = maps.Clone(old.Models)
	needed := false
	for name := range reloads {
		m, files := old.Models[name], next.Model(name)
		if m == nil || files == nil || !m.Batchable {
			continue
		}
		after := *m
		limit := int(files.Config.GetMaxBatchSize())
		if ok, reason := repo.Batchable(files.Config); !ok {
			after.Batchable, after.PassThroughReason, needed = false, reason, true
		} else if limit < int(m.Config.GetMaxBatchSize()) {
			after.MaxBatch, needed = limit, true
			if m.MaxBatch > 0 {
				after.MaxBatch = min(limit, m.MaxBatch)
			}
		}
		narrowed.Models[name] = &after
	}
	if !needed {
		return nil
	}
	return &narrowed
}
