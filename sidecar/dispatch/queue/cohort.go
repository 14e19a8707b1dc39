// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// executor is one executor's state.
type executor struct {
	id       ExecutorID
	server   ExecutorID // the first executor of its server
	rank     int32
	cohort   *cohort
	pos      int // in cohort.members
	up       bool
	draining bool
	busy     bool // from Dispatch to Complete
	since    Time // it was free, last
	// experiment says whether its batch is a trial or a probe.
	experiment experiment
	free       bool          // in the cohort's set of free executors
	late       bool          // it runs requests that were given up
	work       adaptive.Work // of its batch, in its pool's sum
	batch      Batch
	turn       int // index in cohort.cycle of the model that had its turn last
}

// usable reports whether the executor may be given batches when it is idle.
func (p *executor) usable() bool { return p.up && !p.draining }

func before(p, q *executor) int {
	return cmp.Or(cmp.Compare(p.rank, q.rank), cmp.Compare(p.id, q.id))
}

// cohort is the set of executors that serve the same models with the same
// profile classes and limits: they are interchangeable but for their rank. A
// cluster of equal GPUs on which every model is loaded is a single cohort.
type cohort struct {
	key     string
	serves  []Service // by model
	members []*executor
	free    bitset // of positions in members
	nfree   int
	usable  int // members that are up and not draining
	pool    *pool
	cycle   []*model // models that take turns; empty unless all do
	changed bool     // it serves something else since the last wiring

	// Candidates for an executor of this cohort, by latest or rank: those whose exec
	// has come, those whose discipline may let them start before it, and those
	// that are blocked because of the running batches.
	ready, pending, blocked heap
}

// pool is a set of cohorts connected by models that several of them serve:
// the extent over which lanes compete for executors.
type pool struct {
	cohorts []*cohort
	adaptive.Pool
	serving int      // executors that run requests that were given up
	waiting int      // lanes with requests that can still be in time
	preempt bool     // a discipline may preempt, and the sink can
	late    laneList // lanes with requests that were given up
	owed    int      // models that are owed a trial
	overdue Time     // from when on overdue requests may take an executor that other lanes wait for
	forced  Time     // from when on a trial may take an executor that other lanes wait for
	timer   slot     // when the most urgent candidate may start before its exec
}

// service is a cohort as one model sees it.
type service struct {
	cohort *cohort
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

// cohortKey renders a list of services, sorted by model, as a map key.
func cohortKey(serves []Service) string {
	var b []byte
	for _, s := range serves {
		b = binary.AppendVarint(b, int64(s.Model))
		b = binary.AppendVarint(b, int64(s.Class))
		b = binary.AppendVarint(b, int64(s.MaxBatch))
	}
	return string(b)
}

// join adds p to the cohort of executors that serve the same.
func (s *Scheduler) join(p *executor, spec ExecutorSpec) {
	serves := normal(spec.Serves)
	key := cohortKey(serves)
	g := s.byKey[key]
	if g == nil {
		g = &cohort{key: key, serves: serves}
		s.byKey[key] = g
		s.cohorts = append(s.cohorts, g)
		s.dirty = true
	}
	p.rank, p.server, p.cohort = spec.Rank, cmp.Or(spec.Server, p.id), g
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

// has reports whether a cohort serves a model.
func (g *cohort) has(id ModelID) bool {
	_, ok := slices.BinarySearchFunc(g.serves, id, func(s Service, id ModelID) int { return cmp.Compare(s.Model, id) })
	return ok
}

// alter changes what p serves in its cohort, if p is alone in it and no other cohort serves that: only the models that differ are affected. So a
// change of some models costs the others nothing.
func (s *Scheduler) alter(p *executor, spec ExecutorSpec) bool {
	g := p.cohort
	if len(g.members) != 1 || p.draining {
		return false
	}
	serves := normal(spec.Serves)
	key := cohortKey(serves)
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
			s.concerned[g.serves[i].Model] = true
			i++
		case i == len(g.serves) || serves[j].Model < g.serves[i].Model:
			s.concerned[serves[j].Model] = true
			j++
		default:
			if g.serves[i] != serves[j] {
				s.concerned[serves[j].Model] = true
			}
			i, j = i+1, j+1
		}
	}
	delete(s.byKey, g.key)
	s.byKey[key] = g
	g.key, g.serves, g.changed, p.rank = key, serves, true, spec.Rank
	s.altered = true
	return true
}

// components finds the connected components of cohorts, by the models that several of them serve: the index of a cohort of each.
func (s *Scheduler) components() (root []int) {
	root = make([]int, len(s.cohorts))
	find := func(i int) int {
		for root[i] != i {
			root[i] = root[root[i]]
			i = root[i]
		}
		return i
	}
	serving := make([]int, len(s.models)) // the index of a cohort that serves the model, and one
	for i, g := range s.cohorts {
		root[i] = i
		for _, sv := range g.serves {
			if o := serving[sv.Model]; o > 0 {
				root[find(i)] = find(o - 1)
			} else {
				serving[sv.Model] = i + 1
			}
		}
	}
	for i := range root {
		root[i] = find(i)
	}
	return root
}

// poolsHold reports whether the pools are the components of the cohorts as they are now.
func (s *Scheduler) poolsHold() bool {
	of := make(map[int]*pool, len(s.pools))
	for i, root := range s.components() {
		pl := s.cohorts[i].pool
		if known, ok := of[root]; pl == nil || ok && known != pl {
			return false
		}
		of[root] = pl
	}
	return len(of) == len(s.pools)
}

// part takes p out of its cohort.
func (s *Scheduler) part(p *executor) {
	g := p.cohort
	s.setFree(p, false)
	if p.usable() {
		g.count(p, -1)
	}
	g.members = slices.Delete(g.members, p.pos, p.pos+1)
	g.renumber()
	p.cohort = nil
	if len(g.members) == 0 {
		delete(s.byKey, g.key)
		s.cohorts = slices.DeleteFunc(s.cohorts, func(o *cohort) bool { return o == g })
		s.dirty = true
	}
}

// count adjusts the number of usable executors, and what runs on them, when p
// becomes or ceases to be one.
func (g *cohort) count(p *executor, d int) {
	g.usable += d
	if g.pool != nil {
		g.pool.Usable += d
		g.pool.runs(p, d)
	}
}

// runs adds the batch of a busy executor to its pool's sums, or subtracts it.
func (pl *pool) runs(p *executor, d int) {
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

func (g *cohort) renumber() {
	g.free = newBitset(len(g.members))
	for i, p := range g.members {
		p.pos = i
		if p.free {
			g.free.add(i)
		}
	}
}

// setFree moves p into or out of the set of free executors.
func (s *Scheduler) setFree(p *executor, free bool) {
	if p.free == free {
		return
	}
	p.free = free
	g, d := p.cohort, 1
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

// repool finds the connected components of cohorts and models anew. Lanes must
// be detached.
func (s *Scheduler) repool() {
	roots := s.components()
	for _, pl := range s.pools {
		s.timers.remove(&pl.timer)
	}
	s.pools = s.pools[:0]
	of := make(map[int]*pool)
	for i, g := range s.cohorts {
		pl := of[roots[i]]
		if pl == nil {
			pl = &pool{}
			pl.timer.pool = pl
			of[roots[i]] = pl
			s.pools = append(s.pools, pl)
		}
		g.pool = pl
		pl.cohorts = append(pl.cohorts, g)
		pl.Free += g.nfree
		pl.Usable += g.usable
		for _, p := range g.members {
			if p.usable() {
				pl.runs(p, 1)
			}
		}
	}
}
