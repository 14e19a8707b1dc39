// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// nowhere is the address of a server that is to come: no connection is made
// there, since its partition is down.
var nowhere = router.Endpoint{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Metrics: "127.0.0.1:0"}

// tableOf is the route table of a decision: a function of the desired state, of
// what is observed, and of nothing else. Models that the snapshot knows and the
// plan does not place are in it with no place, so that they are refused and not
// unknown; those that load on demand wait to be asked for. Models that the snapshot leaves out although nothing is wrong with
// them are unloaded; like those that would not load they are absent.
func (l *loop) tableOf(routes decide.Routes) *router.Table {
	d := l.desired
	t := &router.Table{Revision: d.Plan.GetSnapshotRevision(), Models: map[string]*router.Model{}, Absent: map[string][]string{}}
	for _, m := range d.Revision.Unloaded {
		t.Absent[m.Name] = versions(m)
	}
	for _, m := range d.Revision.Models {
		if m.Config != nil && m.Err() == nil && m.Derived == nil {
			t.Absent[m.Name] = versions(m)
		}
	}
	executions := map[string]driver.Executions{}
	for _, p := range routes.Partitions {
		part := l.partitionOf(p)
		if v := l.server(p.Server); v != nil {
			executions[p.ID] = l.r.executions(v.process)
			part.Executions = executions[p.ID].AtOnce
		}
		t.Partitions = append(t.Partitions, part)
	}
	for _, m := range d.Snapshot.GetModels() {
		wanted := d.Revision.Model(m.GetName())
		if wanted == nil || wanted.Config == nil {
			continue
		}
		places := routes.Places[m.GetName()]
		onDemand := m.GetOnDemand() && !d.Given
		if _, placed := l.want.Models[m.GetName()]; placed && len(places) == 0 && !onDemand {
			continue // it would not load
		}
		model := l.memberOf(wanted, places)
		if model == nil {
			model = l.modelOf(wanted, places)
		}
		model.Revision, model.SLO, model.Late = m.GetRevision(), time.Duration(m.GetSloUs())*time.Microsecond, m.GetLate()
		if d.PassThrough != "" {
			model.Batchable, model.PassThroughReason = false, d.PassThrough
		}
		for _, p := range places {
			model.Places = append(model.Places, router.Place{Partition: p.Route, MaxBatch: p.MaxBatch, Executions: executions[p.Route].Mask(m.GetName())})
		}
		model.OnDemand = onDemand
		model.Cold = onDemand && !slices.ContainsFunc(places, func(p decide.Place) bool { return !p.Waiting })
		t.Models[m.GetName()] = model
		delete(t.Absent, m.GetName())
	}
	l.groupsOf(t, routes, executions)
	for _, how := range d.Plan.GetDispatch() {
		if m := t.Models[how.GetModel()]; m != nil {
			m.Discipline, m.Parameters, m.DropPolicy = how.GetDiscipline(), maps.Clone(how.GetParameters()), how.GetDropPolicy()
		}
	}
	t.Names = namesOf(d, t, routes.Places)
	return t
}

// partitionOf is a server in the route table, or one that is to come.
func (l *loop) partitionOf(p decide.RoutePartition) *router.PartitionSpec {
	part := &router.PartitionSpec{ID: p.ID, Endpoint: nowhere}
	rank := 0
	if at, wanted := l.wantedAt[p.Partition]; wanted {
		w := l.want.Partitions[at]
		rank = w.Rank
		spec := l.specs[w.Key]
		part.GPU, part.GPUType, part.ThreadPercentage = spec.GPU.GetId(), spec.GPU.GetType(), spec.Partition.GetThreadPercentage()
	}
	if v := l.server(p.Server); v != nil {
		spec := v.process.Spec()
		part.GPU, part.GPUType, part.ThreadPercentage = spec.GPU.GetId(), spec.GPU.GetType(), spec.Partition.GetThreadPercentage()
		part.Endpoint = router.Endpoint(v.process.Endpoint())
		if !l.wants(v) {
			rank = len(l.want.Partitions) // what goes is used last
		}
	}
	part.Rank = rank
	return part
}

// modelOf is a model in the route table: that of the files that are loaded. While
// some places have other files than others, batches are such as all of them take.
func (l *loop) modelOf(wanted *repo.Model, places []decide.Place) *router.Model {
	serving := wanted
	revision := wanted.StagedRevision()
	var others []*repo.Model
	unknown := false
	for _, p := range places {
		if p.Waiting || p.Revision == "" || p.Revision == revision {
			continue
		}
		if m := l.files[fileKey(wanted.Name, p.Revision)]; m != nil {
			serving = m
			others = append(others, m)
		} else {
			unknown = true
		}
	}
	m := &router.Model{Name: wanted.Name, Config: serving.Config, Written: serving.Written, Versions: versions(serving)}
	m.Batchable, m.PassThroughReason = repo.Batchable(serving.Config)
	for _, other := range append(others, wanted) {
		if other == serving || !m.Batchable || len(others) == 0 {
			continue
		}
		if ok, reason := repo.Batchable(other.Config); !ok {
			m.Batchable, m.PassThroughReason = false, reason
		} else if limit := int(other.Config.GetMaxBatchSize()); limit < int(m.Config.GetMaxBatchSize()) && (m.MaxBatch == 0 || limit < m.MaxBatch) {
			m.MaxBatch = limit
		}
	}
	if unknown {
		m.Batchable, m.PassThroughReason = false, "its files changed while conch was away; they are about to be loaded"
	}
	return m
}

// sameTable reports that a table need not be swapped for another. Configurations
// are compared by identity: there is one of each staged revision.
func sameTable(a, b *router.Table) bool {
	if len(a.Models) != len(b.Models) || !reflect.DeepEqual(a.Partitions, b.Partitions) || !reflect.DeepEqual(a.Absent, b.Absent) || a.Revision != b.Revision || len(a.Names) != len(b.Names) {
		return false
	}
	for key, n := range a.Names {
		m := b.Names[key]
		if m == nil || n.Config != m.Config || !slices.Equal(n.Versions, m.Versions) || !reflect.DeepEqual(n.App, m.App) {
			return false
		}
	}
	for name, m := range a.Models {
		n := b.Models[name]
		if n == nil || m.Config != n.Config || m.Written != n.Written {
			return false
		}
		x, y := *m, *n
		x.Config, x.Written, y.Config, y.Written = nil, nil, nil, nil
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

// versions are those that are served of a model, ascending.
func versions(m *repo.Model) []string {
	var all []string
	for _, v := range repo.ServedVersions(m.Config, m.Versions) {
		all = append(all, strconv.FormatInt(v, 10))
	}
	return all
}
