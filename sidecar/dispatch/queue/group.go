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
	serves := slices.Clone(spec.Serves)
	slices.SortStableFunc(serves, func(a, b Service) int { return cmp.Compare(a.Model, b.Model) })
	serves = slices.CompactFunc(serves, func(a, b Service) bool { return a.Model == b.Model })
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
	root := make([]int, len(s.groups))
	find := func(i int) int {
		for root[i] != i {
			root[i] = root[root[i]]
			i = root[i]
		}
		return i
	}
	owner := make(map[ModelID]int)
	for i, g := range s.groups {
		root[i] = i
		for _, sv := range g.serves {
			if o, ok := owner[sv.Model]; ok {
				root[find(i)] = find(o)
			} else {
				owner[sv.Model] = i
			}
		}
	}
	for _, pl := range s.pools {
		s.timers.remove(&pl.timer)
	}
	s.pools = s.pools[:0]
	of := make(map[int]*pool)
	for i, g := range s.groups {
		pl := of[find(i)]
		if pl == nil {
			pl = &pool{}
			pl.timer.pool = pl
			of[find(i)] = pl
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
