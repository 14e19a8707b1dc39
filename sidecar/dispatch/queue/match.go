// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// match updates a lane after a possible change: it gives up requests that cannot be
// in time, gathers the candidates, starts those that may start while executors are
// free for them, and sets the lane's timer for the next call.
func (s *Scheduler) match(l *lane, now Time) {
	for {
		s.refresh(l, now)
		c, p := s.choose(l, now)
		if c == nil {
			s.park(l, now)
			return
		}
		s.grant(c, p, now, c.exec > now)
	}
}

// refresh gives up requests that no executor can serve in time and gathers
// the lane's candidates anew.
func (s *Scheduler) refresh(l *lane, now Time) {
	m := l.m
	s.expireLate(l, now)
heads:
	for r, next := l.waiting.head, (*Request)(nil); r != nil; r = next {
		next = r.next
		switch {
		case int(r.Rows) > m.maxRows:
			s.take(l, r)
			s.drop(r, DropTooLarge)
		case r.expired(now):
			s.expire(l, r)
		case m.fastest != nil && now+m.fastest[r.Rows] > r.Deadline:
			s.giveUp(l, r, DropLate)
		case l.expires && r.by() < now: // its deadline has passed and counts for nothing: requests behind it may be expired
		default:
			break heads
		}
	}
	for i := range l.cands {
		l.cands[i].gather(now, l.waiting.head)
	}
}

// choose finds the candidate whose exec has come and the free executor of the
// smallest rank for it. Under adaptive it may be one of a faster profile class instead,
// the exec of which has not come yet.
func (s *Scheduler) choose(l *lane, now Time) (best *candidate, on *executor) {
	for i := range l.cands {
		c := &l.cands[i]
		c.unblocked = 0
		if c.Requests == 0 {
			continue
		}
		c.exec = execOf(c, now)
		if c.exec > now {
			continue
		}
		if p := freeFor(l, c.svc); p != nil && (on == nil || c.prefers(p, best, on)) && !c.blocked(now) {
			best, on = c, p
		}
	}
	if best == nil || l.m.adaptive == nil {
		return best, on
	}
	for i := range l.cands { // a batch that starts now starts where it takes the least time
		c := &l.cands[i]
		if c.Requests == 0 || c.exec <= now || c.svc.Table == nil || best.svc.Table == nil || c.svc.Table.At(1) >= best.svc.Table.At(1) {
			continue
		}
		if p := freeFor(l, c.svc); p != nil && c.prefers(p, best, on) && !c.blocked(now) {
			best, on = c, p
		}
	}
	return best, on
}

// execOf returns the discipline's exec. Without a profile, for second attempts,
// which have waited once already, and where a level has no room for more requests to wait for, it is now.
func execOf(c *candidate, now Time) Time {
	if c.svc.Table == nil || c.lane.avoid != NoExecutor || c.hastens() {
		return now
	}
	return c.lane.m.spec.Discipline.Exec(now, &c.Load)
}

// hurryOf returns the moment from which adaptive lets a candidate start before its exec.
// It is asked after every event for the most urgent such candidate while an executor is
// free, and for its lane's on other profile classes. No other lane overtakes that
// candidate before its own exec has come.
func hurryOf(c *candidate, now Time) Time {
	m := c.lane.m
	m.aimed(now)
	return m.adaptive.StartAt(now, &c.Load)
}

// blocked reports whether the discipline holds the candidate back although it could
// start, because it would block other models. Second attempts are not held back.
func (c *candidate) blocked(now Time) bool {
	c.unblocked = now
	if m := c.lane.m; m.adaptive != nil && c.svc.Table != nil && c.lane.avoid == NoExecutor && !c.hastens() {
		c.unblocked = c.svc.unblocked(now, &c.Load, m.adaptive)
	}
	return c.unblocked > now
}

func (svc *service) unblocked(now Time, l *Load, p *adaptive.Params) Time {
	pl := svc.cohort.pool
	pl.Kept.Renew(pl.Need, pl.Usable)
	return p.Unblocked(now, l)
}

// prefers reports whether candidate c on executor p is better than o, the candidate of
// another class of the lane, on executor on. The smaller rank is better, but if both would
// block other models, the slower class is.
func (c *candidate) prefers(p *executor, o *candidate, on *executor) bool {
	if b := c.lane.m.adaptive; b != nil && c.svc.Table != nil && o.svc.Table != nil && c.first == o.first && b.Blocks(&c.Load) && b.Blocks(&o.Load) {
		if here, there := c.svc.Table.At(1), o.svc.Table.At(1); here != there {
			return here > there
		}
	}
	return before(p, on) < 0
}

// freeFor returns the idle executor of the smallest rank that a lane may use.
func freeFor(l *lane, svc *service) *executor {
	g := svc.cohort
	if g.nfree == 0 {
		return nil
	}
	i := g.free.first()
	if l.allows(g.members[i]) {
		return g.members[i]
	}
	for _, p := range g.members[i+1:] {
		if p.free && p.server != l.avoid {
			return p
		}
	}
	return nil
}

// allows reports whether a lane may use an executor: not the server that it avoids, while another one serves its model.
func (l *lane) allows(p *executor) bool {
	return l.avoid != p.server || !l.m.hasOther(p.server)
}

// hasOther reports whether any usable executor but those of the server to avoid serves m.
func (m *model) hasOther(avoid ExecutorID) bool {
	for _, svc := range m.services {
		for _, p := range svc.cohort.members {
			if p.server != avoid && p.usable() {
				return true
			}
		}
	}
	return false
}

// park puts the candidates into the heaps of their cohorts and sets the lane's timer
// to the first of: an exec to come, the end of a block, and the moment from which the
// head cannot be in time.
func (s *Scheduler) park(l *lane, now Time) {
	if l.n == 0 {
		s.rest(l)
		return
	}
	due := Never
	for i := range l.cands {
		c := &l.cands[i]
		switch {
		case c.Requests == 0:
			c.park(nil)
		case c.unblocked > now:
			c.park(&c.svc.cohort.blocked)
			due = min(due, c.unblocked)
			if c.exec > now {
				due = min(due, c.exec)
			}
		case c.exec <= now:
			c.park(&c.svc.cohort.ready)
		default:
			due = min(due, c.exec)
			if l.m.adaptive != nil {
				c.park(&c.svc.cohort.pending)
			} else {
				c.park(nil)
			}
		}
	}
	if head := l.waiting.head; l.m.fastest != nil && int(head.Rows) < len(l.m.fastest) && head.Deadline != Never {
		due = min(due, head.Deadline-l.m.fastest[head.Rows]+1)
	}
	s.wake(l, min(due, l.nextExpiry(now)))
}

// nextExpiry is when a lane must be looked at because of its requests' expiries, at the latest.
func (l *lane) nextExpiry(now Time) Time {
	due := l.lateExpiry
	for r := l.waiting.head; l.expires && r != nil; r = r.next {
		if by := r.by(); by >= now {
			due = min(due, by)
			break
		}
		due = min(due, r.Expiry)
	}
	if due == Never {
		return Never
	}
	return due + 1
}

// wake sets the lane's timer; Never: to nothing.
func (s *Scheduler) wake(l *lane, due Time) {
	if due == Never {
		s.timers.remove(&l.timer)
	} else {
		s.timers.set(&l.timer, due)
	}
}

// rest takes a lane without waiting requests out of the heaps, and sets its timer to what its late requests need.
func (s *Scheduler) rest(l *lane) {
	for i := range l.cands {
		c := &l.cands[i]
		c.Batch, c.first, c.last = adaptive.Batch{}, nil, nil
		c.park(nil)
	}
	l.expires = false
	s.wake(l, l.nextExpiry(s.now))
	if l.nlate == 0 && l.on == nil {
		l.m.idle.push(l)
	}
}

// grant starts a candidate on an executor, after the drop policy has given requests
// up. It may end without a dispatch, if the discipline makes the remaining requests
// wait. The lane must be matched again.
func (s *Scheduler) grant(c *candidate, p *executor, now Time, hurried bool) {
	l, svc := c.lane, c.svc
	if c.expiry < now { // the event comes later than it was due
		s.refresh(l, now)
		if c.Requests == 0 || !hurried && execOf(c, now) > now {
			return
		}
	}
	if svc.bounded {
		l.m.aimed(now)
		if now > c.Latest {
			c.gather(now, l.waiting.head)
			if c.Requests == 0 || !hurried && execOf(c, now) > now {
				return
			}
		}
		// Requests that could start only just in time are given up if younger ones can take their place.
		hold, edge := svc.hold, svc.edge
		if d := l.m.spec.Drop; d.surgeLoad != nil {
			if load := d.surgeLoad(now, &c.Load, l.m.rows); load > svc.cohort.pool.Load() {
				hold, _ = d.hold(&c.Load, load)
				hold = min(hold, svc.most)
			}
		}
		least := leastRows(now+edge, l, c.first, svc.Table, hold)
		gaveUp := s.clear(c, now+edge, now, least)
		if c.Requests == 0 || !hurried && execOf(c, now) > now {
			if gaveUp {
				return
			}
			c.gather(now, l.waiting.head) // no request was given up: start from the head after all
		}
	}
	if svc.bounded && c.widen(now) {
		p.experiment = experimentProbe
		s.stats.Probes++
	}
	if s.trial > 0 {
		c.vary()
	}
	l.m.probe.since++
	l.m.trial.executes(c.Rows, now, s.trial)
	hurried = hurried && execOf(c, now) > now
	l.waiting.cut(c.first, c.last)
	s.count(l, -c.Requests, -c.Rows)
	others := len(s.filled)
	if p.experiment != experimentProbe {
		s.fill(c, now)
	}
	l.m.takesTurn(l, svc)
	s.dispatch(p, l, svc, c.first, now, false, hurried)
	for len(s.filled) > others { // matching one may grant, and fill, again
		o := s.filled[len(s.filled)-1]
		s.filled = s.filled[:len(s.filled)-1]
		s.match(o, now)
	}
}

// clear makes room for a batch of at least `least` rows: it gives up the
// requests at the front that cannot finish in one. A request that some other
// profile class serves faster is passed over instead of given up. It reports
// whether any was given up.
func (s *Scheduler) clear(c *candidate, start, now Time, least int) (gaveUp bool) {
	if least <= 1 {
		return false
	}
	l, t := c.lane, c.svc.Table
	r := c.first
	for r != nil && start+t.At(max(least, int(r.Rows))) > r.Deadline {
		next := r.next
		if t.At(int(r.Rows)) <= l.m.fastest.At(int(r.Rows)) {
			s.giveUp(l, r, DropWindow)
			gaveUp = true
		}
		r = next
	}
	if r == c.first {
		return false
	}
	c.gather(now, r)
	return gaveUp
}

// dispatch hands the run of requests that begins with r, already cut from its
// list, to the sink.
func (s *Scheduler) dispatch(p *executor, l *lane, svc *service, r *Request, now Time, late, hurried bool) {
	b := &p.batch
	b.Model, b.Executor, b.Requests, b.Rows = l.m.id, p.id, b.Requests[:0], 0
	for r != nil {
		next := r.next
		r.prev, r.next, r.lane, r.listed = nil, nil, nil, listedNowhere
		b.Requests = append(b.Requests, r)
		b.Rows += int(r.Rows)
		r = next
	}
	b.Start, b.Finish, b.Free = now, now+svc.Table.At(b.Rows), p.since
	b.Late, b.Hurried = late, hurried
	s.setFree(p, false)
	p.busy, p.late = true, late
	p.work = adaptive.WorkOf(b.Finish, svc.Table.At(svc.Reach))
	p.cohort.pool.runs(p, 1)
	if len(p.cohort.cycle) > 0 && !late {
		p.cohort.took(p, l.m)
	}
	s.stats.dispatched(b)
	s.sink.Dispatch(b)
}

// freed offers an idle executor to the candidates whose exec has come, the
// nearest latest first. A candidate with a nearer latest that may start before its
// exec goes first.
func (s *Scheduler) freed(p *executor, now Time) {
	if pl := p.cohort.pool; pl.late.n > 0 {
		if pl.serving < pl.leftOver() {
			s.serveLate(pl, now, lateLeftOver)
		} else {
			s.forceLate(pl, now)
		}
	}
	for p.free {
		g := p.cohort
		c := g.mostUrgent(p)
		if c == nil {
			return
		}
		if c.svc.bounded && c.Latest < now {
			// It waited past its latest: what remains of it may be less urgent
			// than others.
			s.refresh(c.lane, now)
			s.retime(c.lane, now)
			s.park(c.lane, now)
			continue
		}
		hurried := c.in != &g.ready // see model.first
		if len(g.pending) > 0 && g.pending[0].key < c.Latest {
			if o := g.pending[0].s.cand; !o.behind(c) && hurryOf(o, now) <= now && !o.blocked(now) {
				c, hurried = o, true
			}
		}
		if c.blocked(now) {
			s.park(c.lane, now)
			continue
		}
		if c.last.MaxQueue > 0 && !hurried && execOf(c, now) > now { // its level was full when it became ready, and has room again
			s.match(c.lane, now)
			continue
		}
		s.grant(c, p, now, hurried)
		s.match(c.lane, now)
	}
}

// retime asks the discipline about every candidate of a lane.
func (s *Scheduler) retime(l *lane, now Time) {
	for i := range l.cands {
		if c := &l.cands[i]; c.Requests > 0 {
			c.exec = execOf(c, now)
		}
	}
}

// mostUrgent returns the candidate of the nearest latest that may use p now, or the one of its model that takes the model's turn.
func (g *cohort) mostUrgent(p *executor) *candidate {
	if len(g.ready) == 0 {
		return nil
	}
	if len(g.cycle) > 0 {
		return g.inTurn(p)
	}
	allowed := func(l *lane) bool { return l.allows(p) }
	c := g.ready[0].s.cand
	if allowed(c.lane) {
		return c.lane.m.first(c, allowed)
	}
	var best *candidate
	key := Never
	for _, e := range g.ready {
		if l := e.s.lane; (best == nil || e.key < key) && allowed(l) {
			best, key = e.s.cand, e.key
		}
	}
	if best == nil {
		return nil
	}
	return best.lane.m.first(best, allowed)
}
