// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// partition is one partition's state.
type partition struct {
	id       PartitionID
	rank     int32
	group    *group
	pos      int // in group.members
	up       bool
	draining bool
	busy     bool // from Dispatch to Complete
	since    Time // it was free, last
	// experiment says whether its batch is a trial or a probe.
	experiment experiment
	free       bool          // in the group's set of free partitions
	late       bool          // it runs requests that were given up
	work       adaptive.Work // of its batch, in its pool's sum
	batch      Batch
	turn       int // index in group.cycle of the model that had its turn last
}

// usable reports whether the partition may be given batches when it is idle.
func (p *partition) usable() bool { return p.up && !p.draining }

func before(p, q *partition) int {
	return cmp.Or(cmp.Compare(p.rank, q.rank), cmp.Compare(p.id, q.id))
}

// group is the set of partitions that serve the same models with the same
// profile classes and limits: they are interchangeable but for their rank. A
// cluster of equal GPUs on which every model is loaded is a single group.
type group struct {
	key     string
	serves  []Service // by model
	members []*partition
	free    bitset // of positions in members
	nfree   int
	usable  int // members that are up and not draining
	pool    *pool
	cycle   []*model // models that take turns; empty unless all do
	changed bool     // it serves something else since the last wiring

	// Candidates for a partition of this group, by latest or rank: those whose exec
	// has come, those whose discipline may let them start before it, and those
	// that are blocked because of the running batches.
	ready, pending, blocked heap
}

// pool is a set of groups connected by models that several of them serve:
// the extent over which lanes compete for partitions.
type pool struct {
	groups []*group
	adaptive.Pool
	serving int      // partitions that run requests that were given up
	waiting int      // lanes with requests that can still be in time
	preempt bool     // a discipline may preempt, and the sink can
	late    laneList // lanes with requests that were given up
	owed    int      // models that are owed a trial
	overdue Time     // from when on overdue requests may take a partition that other lanes wait for
	forced  Time     // from when on a trial may take a partition that other lanes wait for
	timer   slot     // when the most urgent candidate may start before its exec
}

// service is a group as one model sees it.
type service struct {
	group *group
	adaptive.Model
	load    adaptive.Load // of the model and its pool, without a batch
	hope    Table         // nil where Table is known well
	most    int           // rows per batch: MaxBatch, or less if the discipline wants that, as of epoch
	bounded bool          // batches are kept within deadlines
	late    int           // rows per batch of requests that were given up

	// hold is the batch that the drop policy holds on to, and edge how much later
	// than planned it shall be able to end, as of the model's epoch.
	hold int
	edge Time
}

// groupKey renders a list of services, sorted by model, as a map key.
func groupKey(serves []Service) string {
	var b []byte
	for _, s := range serves {
		b = binary.AppendVarint(b, int64(s.Model))
		b = binary.AppendVarint(b, int64(s.Class))
		b = binary.AppendVarint(b, int64(s.MaxBatch))
	}
	return string(b)
}

// join adds p to the group of partitions that serve the same.
func (s *Scheduler) join(p *partition, spec PartitionSpec) {
	serves := normal(spec.Serves)
	key := groupKey(serves)
	g := s.byKey[key]
	if g == nil {
		g = &group{key: key, serves: serves}
		s.byKey[key] = g
		s.groups = append(s.groups, g)
		s.dirty = true
	}
	p.rank, p.group = spec.Rank, g
	i, _ := slices.BinarySearchFunc(g.members, p, before)
	g.members = slices.Insert(g.members, i, p)
	if p.usable() {
		g.count(p, 1)
	}
	g.renumber()
}

// normal sorts services by model, and leaves out all but the first of each.
func normal(serves []Service) []Service {
	serves = slices.Clone(serves)
	slices.SortStableFunc(serves, func(a, b Service) int { return cmp.Compare(a.Model, b.Model) })
	return slices.CompactFunc(serves, func(a, b Service) bool { return a.Model == b.Model })
}

// has reports whether a group serves a model.
func (g *group) has(id ModelID) bool {
	_, ok := slices.BinarySearchFunc(g.serves, id, func(s Service, id ModelID) int { return cmp.Compare(s.Model, id) })
	return ok
}

// alter changes what p serves in its group, if p is alone in it and no other group serves that: only the models that differ are affected. So a
// change of some models costs the others nothing.
func (s *Scheduler) alter(p *partition, spec PartitionSpec) bool {
	g := p.group
	if len(g.members) != 1 || p.draining {
		return false
	}
	serves := normal(spec.Serves)
	key := groupKey(serves)
	if key == g.key {
		p.rank = spec.Rank
		return true
	}
	if s.byKey[key] != nil {
		return false
	}
	for i, j := 0, 0; i < len(g.serves) || j < len(serves); {
		switch {
		case j == len(serves) || i < len(g.serves) && g.serves[i].Model < serves[j].Model:
			s.regroups[g.serves[i].Model] = true
			i++
		case i == len(g.serves) || serves[j].Model < g.serves[i].Model:
			s.regroups[serves[j].Model] = true
			j++
		default:
			if g.serves[i] != serves[j] {
				s.regroups[serves[j].Model] = true
			}
			i, j = i+1, j+1
		}
	}
	delete(s.byKey, g.key)
	s.byKey[key] = g
	g.key, g.serves, g.changed, p.rank = key, serves, true, spec.Rank
	s.regrouped = true
	return true
}

// components finds the connected components of groups, by the models that several of them serve: the index of a group of each.
func (s *Scheduler) components() (root []int) {
	root = make([]int, len(s.groups))
	find := func(i int) int {
		for root[i] != i {
			root[i] = root[root[i]]
			i = root[i]
		}
		return i
	}
	owner := make([]int, len(s.models)) // the index of a group that serves the model, and one
	for i, g := range s.groups {
		root[i] = i
		for _, sv := range g.serves {
			if o := owner[sv.Model]; o > 0 {
				root[find(i)] = find(o - 1)
			} else {
				owner[sv.Model] = i + 1
			}
		}
	}
	for i := range root {
		root[i] = find(i)
	}
	return root
}

// poolsHold reports whether the pools are the components of the groups as they are now.
func (s *Scheduler) poolsHold() bool {
	of := make(map[int]*pool, len(s.pools))
	for i, root := range s.components() {
		pl := s.groups[i].pool
		if known, ok := of[root]; pl == nil || ok && known != pl {
			return false
		}
		of[root] = pl
	}
	return len(of) == len(s.pools)
}

// part takes p out of its group.
func (s *Scheduler) part(p *partition) {
	g := p.group
	s.setFree(p, false)
	if p.usable() {
		g.count(p, -1)
	}
	g.members = slices.Delete(g.members, p.pos, p.pos+1)
	g.renumber()
	p.group = nil
	if len(g.members) == 0 {
		delete(s.byKey, g.key)
		s.groups = slices.DeleteFunc(s.groups, func(o *group) bool { return o == g })
		s.dirty = true
	}
}

// count adjusts the number of usable partitions, and what runs on them, when p
// becomes or ceases to be one.
func (g *group) count(p *partition, d int) {
	g.usable += d
	if g.pool != nil {
		g.pool.Usable += d
		g.pool.runs(p, d)
	}
}

// runs adds the batch of a busy partition to its pool's sums, or subtracts it.
func (pl *pool) runs(p *partition, d int) {
	if !p.busy {
		return
	}
	if p.late {
		pl.serving += d
	}
	if d > 0 {
		pl.Running.Add(p.work)
	} else {
		pl.Running.Remove(p.work)
	}
}

func (g *group) renumber() {
	g.free = newBitset(len(g.members))
	for i, p := range g.members {
		p.pos = i
		if p.free {
			g.free.add(i)
		}
	}
}

// setFree moves p into or out of the set of free partitions.
func (s *Scheduler) setFree(p *partition, free bool) {
	if p.free == free {
		return
	}
	p.free = free
	g, d := p.group, 1
	if free {
		g.free.add(p.pos)
	} else {
		g.free.remove(p.pos)
		d = -1
	}
	g.nfree += d
	s.free += d
	if g.pool != nil {
		g.pool.Free += d
	}
}

// repool finds the connected components of groups and models anew. Lanes must
// be detached.
func (s *Scheduler) repool() {
	roots := s.components()
	for _, pl := range s.pools {
		s.timers.remove(&pl.timer)
	}
	s.pools = s.pools[:0]
	of := make(map[int]*pool)
	for i, g := range s.groups {
		pl := of[roots[i]]
		if pl == nil {
			pl = &pool{}
			pl.timer.pool = pl
			of[roots[i]] = pl
			s.pools = append(s.pools, pl)
		}
		g.pool = pl
		pl.groups = append(pl.groups, g)
		pl.Free += g.nfree
		pl.Usable += g.usable
		for _, p := range g.members {
			if p.usable() {
				pl.runs(p, 1)
			}
		}
	}
}
