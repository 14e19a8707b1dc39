// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

var (
	// ErrUnknownModel means that no model has that identifier (any more).
	ErrUnknownModel = errors.New("no such model")
	// ErrUnknownExecutor means that no executor has that identifier (any more).
	ErrUnknownExecutor = errors.New("no such executor")
	// ErrBusy means that the executor runs a batch; drain it and Complete first.
	ErrBusy = errors.New("the executor is running a batch")
)

// Reconfigure makes the changes that its argument makes, through the methods of
// this Scheduler, as one: nothing is dispatched or given up in between. Each
// change outside it is a reconfiguration of its own. No request is lost or
// answered twice by any of them.
func (s *Scheduler) Reconfigure(now Time, change func()) {
	now = s.advance(now)
	s.held++
	change()
	s.release(now)
}

// hold opens a change, release closes it.
func (s *Scheduler) hold(now Time) Time {
	now = s.advance(now)
	s.held++
	return now
}

func (s *Scheduler) release(now Time) {
	if s.held--; s.held > 0 {
		return
	}
	respecified := s.respecified
	s.respecified = nil
	if s.dirty || s.altered && !s.regroup(&respecified) {
		s.rewire()
	} else {
		for _, m := range respecified {
			s.respec(m)
		}
	}
	s.altered = false
	clear(s.concerned)
	for _, m := range s.models {
		if m != nil && m.requests+m.late > 0 {
			s.rematch(m, now)
		}
	}
	for _, pl := range s.pools {
		s.matchPool(pl, now)
	}
}

// rematch matches the lanes of a model anew.
func (s *Scheduler) rematch(m *model, now Time) {
	for _, l := range m.lanes {
		s.dropTooLarge(l)
		if l.n > 0 || l.lateExpiry != Never {
			s.match(l, now)
		}
	}
}

// respec is rewire for a single model that has another specification and the same
// cohorts, so that a new profile of one model costs the others nothing.
func (s *Scheduler) respec(m *model) {
	m.shed(len(m.lanes))
	for _, l := range m.lanes {
		s.timers.remove(&l.timer)
		for i := range l.cands {
			l.cands[i].park(nil)
		}
	}
	cohorts := s.cohorts
	if !s.concerned[m.id] {
		cohorts = make([]*cohort, len(m.services))
		for i, svc := range m.services {
			cohorts[i] = svc.cohort
		}
	}
	m.unserve()
	m.serve(cohorts)
	for _, l := range m.lanes {
		l.wire()
	}
	if m.pool != nil && m.preempter != nil && s.preemptor != nil {
		m.pool.preempt = true
	}
}

// regroup adds the models whose cohorts serve something else to those that are respecified. It reports whether that is enough: the same cohorts compete
// as before, and no request waits that would have to be moved from one pool to another. Else everything is rewired.
func (s *Scheduler) regroup(respecified *[]*model) bool {
	if !s.poolsHold() {
		return false
	}
	for _, id := range slices.Sorted(maps.Keys(s.concerned)) {
		m := s.model(id)
		if m == nil {
			continue
		}
		var next *pool
		for _, g := range s.cohorts {
			if g.has(id) {
				next = g.pool
				break
			}
		}
		if next != m.pool && !m.rests() {
			return false
		}
		if !slices.Contains(*respecified, m) {
			*respecified = append(*respecified, m)
		}
	}
	for _, g := range s.cohorts {
		if g.changed {
			g.changed = false
			s.order(g)
		}
	}
	return true
}

// rests reports whether nothing of a model is in the lists of its pool.
func (m *model) rests() bool {
	for _, l := range m.lanes {
		if l.n > 0 || l.nlate > 0 {
			return false
		}
	}
	return !m.trial.owed
}

// dropTooLarge drops late requests that no batch has room for any more; match
// does so for those that wait.
func (s *Scheduler) dropTooLarge(l *lane) {
	for r := l.late.head; r != nil; {
		next := r.next
		if int(r.Rows) > l.m.maxRows {
			s.take(l, r)
			s.drop(r, DropTooLarge)
		}
		r = next
	}
}

// rewire rebuilds cohorts, pools and candidates. Requests stay where they are.
func (s *Scheduler) rewire() {
	s.dirty = false
	for _, g := range s.cohorts {
		g.changed = false
	}
	for _, m := range s.models {
		if m == nil {
			continue
		}
		m.shed(len(m.lanes))
		for _, l := range m.lanes {
			s.timers.remove(&l.timer)
			l.leave()
			for i := range l.cands {
				l.cands[i].park(nil)
			}
		}
	}
	s.repool()
	for _, m := range s.models {
		if m == nil {
			continue
		}
		m.serve(s.cohorts)
		for _, l := range m.lanes {
			l.wire()
			switch {
			case l.nlate > 0 && m.pool != nil:
				m.pool.late.push(l)
			case l.n == 0 && l.nlate == 0:
				m.idle.push(l)
			}
			if l.n > 0 && m.pool != nil {
				m.pool.waiting++
			}
		}
		if m.pool != nil && m.trial.owed {
			m.pool.owed++
		}
		if m.pool != nil && m.preempter != nil && s.preemptor != nil {
			m.pool.preempt = true
		}
	}
	for _, g := range s.cohorts {
		s.order(g)
	}
}

// AddModel adds a model that no executor serves yet.
func (s *Scheduler) AddModel(now Time, spec ModelSpec) ModelID {
	now = s.hold(now)
	m := &model{id: ModelID(len(s.models)), byKey: make(map[laneKey]*lane)}
	m.rate.width = max(1, s.window/rateBuckets)
	m.setSpec(spec)
	m.serve(nil)
	s.models = append(s.models, m)
	s.release(now)
	return m.id
}

// SetModel replaces a model's specification: profile, SLO, discipline and so
// on. Queued requests stay queued with the deadlines that they have.
func (s *Scheduler) SetModel(now Time, id ModelID, spec ModelSpec) error {
	m := s.model(id)
	if m == nil {
		return fmt.Errorf("set model %d (%q): %w", id, spec.Name, ErrUnknownModel)
	}
	now = s.hold(now)
	was, cycles, preempts := m.spec.Late, m.cycles, m.preempter != nil
	m.setSpec(spec)
	if spec.Closed {
		s.empty(m, DropClosed)
	} else {
		s.reopen(m, was)
	}
	// The values that cohorts and pools take from disciplines are computed for all of them.
	s.dirty = s.dirty || m.cycles != cycles || (m.preempter != nil) != preempts
	if s.held > 1 || s.dirty {
		s.respecified = append(s.respecified, m)
		s.release(now)
		return nil
	}
	s.held--
	s.respec(m)
	s.rematch(m, now)
	s.end(m.pool, now)
	return nil
}

// reopen puts requests that were given up back among those that wait, if the
// new specification may decide otherwise about them. A request that waits for a
// trial stays late.
func (s *Scheduler) reopen(m *model, was Late) {
	if (m.spec.Late == LateServe || was == LateDrop) && m.spec.Drop.bounded && len(m.spec.Classes) > 0 {
		return
	}
	for _, l := range m.lanes {
		for r := l.late.tail; r != nil; r = l.late.tail { // backwards: each goes ahead of equal deadlines
			s.take(l, r)
			l.leave()
			r.lane, r.listed = l, listedWaiting
			l.waiting.insert(r, true)
			l.expires = l.expires || r.Expiry != Never
			s.count(l, 1, int(r.Rows))
		}
	}
}

// RemoveModel removes a model. Its queued requests are dropped with
// DropModelRemoved; batches that run are completed as usual.
func (s *Scheduler) RemoveModel(now Time, id ModelID) error {
	m := s.model(id)
	if m == nil {
		return fmt.Errorf("remove model %d: %w", id, ErrUnknownModel)
	}
	now = s.hold(now)
	s.empty(m, DropModelRemoved)
	for _, l := range m.lanes {
		l.leave()
	}
	m.unserve()
	if m.pool != nil && m.trial.owed {
		m.pool.owed--
	}
	s.models[id] = nil
	s.altered = true
	s.release(now)
	return nil
}

// Empty drops all that is queued for a model, with a reason of the caller's.
func (s *Scheduler) Empty(now Time, id ModelID, why DropReason) error {
	m := s.model(id)
	if m == nil {
		return fmt.Errorf("empty model %d: %w", id, ErrUnknownModel)
	}
	now = s.advance(now)
	s.empty(m, why)
	s.end(m.pool, now)
	return nil
}

// empty drops all that is queued for a model.
func (s *Scheduler) empty(m *model, why DropReason) {
	for _, l := range m.lanes {
		for _, q := range []*list{&l.waiting, &l.late} {
			for r := q.head; r != nil; r = q.head {
				s.take(l, r)
				s.drop(r, why)
			}
		}
		s.rest(l)
	}
}

// AddExecutor adds an executor that is up.
func (s *Scheduler) AddExecutor(now Time, spec ExecutorSpec) ExecutorID {
	now = s.hold(now)
	p := &executor{id: ExecutorID(len(s.executors)), up: true}
	s.executors = append(s.executors, p)
	s.join(p, spec)
	s.idle(p, now)
	s.release(now)
	return p.id
}

// SetExecutor changes an executor's rank or what it serves, and ends a drain.
// A batch that it runs is not affected.
func (s *Scheduler) SetExecutor(now Time, id ExecutorID, spec ExecutorSpec) error {
	p := s.executor(id)
	if p == nil {
		return fmt.Errorf("set executor %d: %w", id, ErrUnknownExecutor)
	}
	now = s.hold(now)
	if !s.alter(p, spec) {
		s.part(p)
		p.draining = false
		s.join(p, spec)
	}
	s.idle(p, now)
	s.release(now)
	return nil
}

// DrainExecutor gives the executor no further batch. It can be removed once
// the one that it runs is complete.
func (s *Scheduler) DrainExecutor(now Time, id ExecutorID) error {
	p := s.executor(id)
	if p == nil {
		return fmt.Errorf("drain executor %d: %w", id, ErrUnknownExecutor)
	}
	s.change(now, p, func() { p.draining = true })
	return nil
}

// SetUp sets whether an executor can take batches. Going down does not touch
// the batch that it runs: the caller decides about its requests (Requeue or
// fail) and calls Complete, before or after the executor is up again. Until
// then the executor gets no other batch.
func (s *Scheduler) SetUp(now Time, id ExecutorID, up bool) error {
	p := s.executor(id)
	if p == nil {
		return fmt.Errorf("set executor %d up=%t: %w", id, up, ErrUnknownExecutor)
	}
	s.change(now, p, func() { p.up = up })
	return nil
}

// change alters whether an executor is usable.
func (s *Scheduler) change(now Time, p *executor, alter func()) {
	now = s.advance(now)
	was := p.usable()
	alter()
	g := p.cohort
	switch is := p.usable(); {
	case is && !was:
		g.count(p, 1)
		s.idle(p, now)
	case was && !is:
		g.count(p, -1)
		s.setFree(p, false)
		s.reconsider(g, now)
	}
	s.end(g.pool, now)
}

// reconsider places the lanes that avoid an executor which may now be the only
// one that is left for them.
func (s *Scheduler) reconsider(g *cohort, now Time) {
	if s.held > 0 {
		return
	}
	for _, sv := range g.serves {
		m := s.model(sv.Model)
		if m == nil || m.avoiding == 0 {
			continue
		}
		for _, l := range m.lanes {
			if l.avoid != NoExecutor && l.n > 0 {
				s.match(l, now)
			}
		}
	}
}

// RemoveExecutor removes an idle executor.
func (s *Scheduler) RemoveExecutor(now Time, id ExecutorID) error {
	p := s.executor(id)
	if p == nil {
		return fmt.Errorf("remove executor %d: %w", id, ErrUnknownExecutor)
	}
	if p.busy {
		return fmt.Errorf("remove executor %d: %w", id, ErrBusy)
	}
	now = s.hold(now)
	s.part(p)
	s.executors[id] = nil
	s.release(now)
	return nil
}
