// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"math"
)

// matchPool makes the decisions that depend on a whole pool, after every event. First
// it starts candidates that may start before their exec, the most urgent first.
// Then it serves requests that were given up, on the executors that are left over.
func (s *Scheduler) matchPool(pl *pool, now Time) {
	if pl == nil {
		return
	}
	if pl.preempt {
		s.preempt(pl, now)
	}
	s.unblock(pl, now)
	next := Never
	for pl.Free > 0 && pl.waiting > 0 {
		urgent := pl.mostUrgent()
		if urgent == nil {
			break
		}
		c, p, at, blocked := hurried(urgent.lane, now)
		if blocked {
			s.park(urgent.lane, now) // so that less urgent candidates come next
			continue
		}
		if p == nil {
			next = at
			break
		}
		if o := c.lane.m.first(c, func(l *lane) bool { return l.allows(p) }); o == c || !o.blocked(now) {
			c = o
		}
		s.grant(c, p, now, true)
		s.match(c.lane, now)
	}
	for pl.late.n > 0 && pl.Free > 0 && (pl.serving < pl.leftOver() || !s.contested(pl)) {
		served, from := s.serveLate(pl, now, lateLeftOver)
		if !served {
			next = min(next, from)
			break
		}
	}
	if pl.Free > 0 && pl.late.n > 0 {
		s.forceLate(pl, now)
	}
	if next == Never {
		s.timers.remove(&pl.timer)
	} else {
		s.timers.set(&pl.timer, next)
	}
}

// contested reports whether as many lanes with requests that can be in time wait for the idle executors as there are. A lane that none of these
// serves, because its model is elsewhere or it avoids them, takes none of them from requests that were given up.
func (s *Scheduler) contested(pl *pool) bool {
	if pl.waiting < pl.Free {
		return false
	}
	lanes := 0
	for _, g := range pl.cohorts {
		if g.nfree == 0 {
			continue
		}
		for _, sv := range g.serves {
			m := s.model(sv.Model)
			if m == nil || m.requests == 0 {
				continue
			}
			for _, l := range m.lanes {
				if l.n == 0 || l.idler() != g {
					continue
				}
				if lanes++; lanes >= pl.Free {
					return true
				}
			}
		}
	}
	return false
}

// idler is the first cohort that has an idle executor for one of the lane's candidates; nil: none has.
func (l *lane) idler() *cohort {
	for i := range l.cands {
		if c := &l.cands[i]; c.Requests > 0 && freeFor(l, c.svc) != nil {
			return c.svc.cohort
		}
	}
	return nil
}

// Requests that were given up and have waited for overdueAfter times the time that they had at first are overdue. While there are such, their batches
// take one part in overdueShare of the pool's time although other lanes wait. Without that, none would be served before an overload ends, because
// the requests that can be in time take all executors until then. An overload thus costs the others about a sixty-fourth of their goodput, and a load that
// leaves time over for late requests costs nothing, because none becomes overdue.
const (
	overdueAfter = 20
	overdueShare = 64
)

// overdueAt is when a request that was given up is overdue. One that was put off at its expiry, which may be soon, is so after the rate window at the
// earliest.
func (s *Scheduler) overdueAt(r *Request) Time {
	by := r.by()
	if by == Never {
		return Never
	}
	wait := overdueAfter * max(1, by-r.Arrival)
	if r.Expiry < r.Deadline {
		wait = max(wait, s.window)
	}
	return r.Arrival + wait
}

// forceLate dispatches a batch of requests that were given up although other lanes wait for the executor, if a trial or an overdue request may do
// so now.
func (s *Scheduler) forceLate(pl *pool, now Time) {
	if pl.mayForce(now) {
		if served, _ := s.serveLate(pl, now, lateTrial); served {
			return
		}
	}
	if now < pl.overdue {
		return
	}
	if served, _ := s.serveLate(pl, now, lateOverdue); served {
		return
	}
	// Look again when the first is overdue. Those that are given up meanwhile came later.
	pl.overdue = Never
	for l := pl.late.head; l != nil; l = l.next {
		pl.overdue = min(pl.overdue, max(now+1, s.overdueAt(l.late.head)))
	}
}

// lateReason is why requests that were given up may take an executor.
type lateReason uint8

const (
	// lateLeftOver: nothing else wants it.
	lateLeftOver lateReason = iota
	// lateTrial: a model is owed a trial. Only such a model is served.
	lateTrial
	// lateOverdue: requests are overdue. Only lanes that have such are served.
	lateOverdue
)

// unblock places the lanes of candidates that were held back, the most urgent first,
// up to the first that the running batches still hold back.
func (s *Scheduler) unblock(pl *pool, now Time) {
	for _, g := range pl.cohorts {
		for g.nfree > 0 && len(g.blocked) > 0 {
			c := g.blocked[0].s.cand
			if o := c.lane.m.first(c, func(*lane) bool { return true }); o != c && !o.blocked(now) {
				c = o
			}
			if c.blocked(now) {
				break
			}
			s.match(c.lane, now)
		}
	}
}

// leftOver is how many executors may run requests that were given up even while
// other requests wait: half of the executors that the load does not need. Some
// disciplines let lanes wait on purpose, and under others small batches fill all
// executors. Either way some lane waits nearly always, and late requests would never
// be served.
func (pl *pool) leftOver() int {
	if pl.Need == 0 {
		return 0
	}
	return (pl.Usable - int(math.Ceil(pl.Need))) / 2
}

// hurried is choose for the candidates of a lane that may start before their exec.
// If none may now, it returns nil and the moment from which one may. The slowest
// profile class has the earliest latest and so makes a lane urgent. The candidate
// nevertheless goes to the free executor of the smallest rank that it can use.
//
// It also reports whether none may start only because the discipline blocks it.
func hurried(l *lane, now Time) (best *candidate, on *executor, at Time, blocked bool) {
	at = Never
	for i := range l.cands {
		c := &l.cands[i]
		if c.in != &c.svc.cohort.pending {
			continue
		}
		p := freeFor(l, c.svc)
		if p == nil || on != nil && !c.prefers(p, best, on) {
			continue
		}
		if from := hurryOf(c, now); from > now {
			at = min(at, from)
			continue
		}
		if c.blocked(now) {
			blocked = true
			continue
		}
		best, on = c, p
	}
	return best, on, at, blocked && on == nil
}

// mostUrgent returns the candidate of the nearest latest, among those whose
// exec has not come, that a free executor could take.
func (pl *pool) mostUrgent() *candidate {
	var best *candidate
	key := Never
	for _, g := range pl.cohorts {
		if g.nfree > 0 && len(g.pending) > 0 && (best == nil || g.pending[0].key < key) {
			best, key = g.pending[0].s.cand, g.pending[0].key
		}
	}
	return best
}

// serveLate dispatches one batch of requests that were given up, from the lanes in
// turn, in the order in which they were given up. lateLimit limits its rows. If it
// dispatches none, it returns from when on one that is only blocked may start.
func (s *Scheduler) serveLate(pl *pool, now Time, why lateReason) (served bool, from Time) {
	from = Never
	for turn := pl.late.head; turn != nil; turn = turn.next {
		l := turn
		if why == lateLeftOver {
			l = l.m.firstLate(l)
		}
		if l.lateExpiry < now { // the event comes later than it was due
			if s.expireLate(l, now); l.nlate == 0 {
				return s.serveLate(pl, now, why) // the list is another one
			}
		}
		if why == lateTrial && !l.m.trial.owed || why == lateOverdue && now < s.overdueAt(l.late.head) {
			continue
		}
		first, svc, on := l.firstFit()
		if on == nil {
			continue
		}
		if at := svc.lateUnblocked(now, l); why != lateTrial && at > now {
			from = min(from, at)
			continue
		}
		last, rows, n := first, int(first.Rows), 1
		for r := first.next; r != nil && rows+int(r.Rows) <= svc.late; r = r.next {
			last, rows, n = r, rows+int(r.Rows), n+1
		}
		if l.m.trial.owed {
			l.m.trialDone()
			on.experiment = experimentTrial
			if why == lateTrial {
				pl.force(now, svc.Table.At(rows))
			}
		}
		if why == lateOverdue {
			pl.overdue = now + overdueShare*max(1, svc.Table.At(rows))/Time(max(1, pl.Usable))
		}
		l.late.cut(first, last)
		s.countLate(l, -n, -rows)
		for r := first; r != nil; r = r.next {
			s.late(r, -1)
		}
		if l.nlate > 0 { // the other lanes' turn
			l.leave()
			pl.late.push(l)
		}
		l.m.takesLateTurn(l)
		s.dispatch(on, l, svc, first, now, true, false)
		return true, from
	}
	return false, from
}

// latePassed is how many late requests, in a lane, are passed over at most that have too many rows for the idle executors.
const latePassed = 256

// firstFit returns the first of the lane's late requests that an idle executor has room for, and of these executors the one of the smallest rank. Executors differ
// in how many rows they take: a request that is too large for the idle ones would otherwise keep those behind it waiting, for ever if the executors that have
// room for it are down.
func (l *lane) firstFit() (first *Request, svc *service, on *executor) {
	most := 0
	for _, o := range l.m.services {
		p := freeFor(l, o)
		switch {
		case p == nil:
		case int(l.late.head.Rows) > o.MaxBatch:
			most = max(most, o.MaxBatch)
		case on == nil || before(p, on) < 0:
			first, svc, on = l.late.head, o, p
		}
	}
	if on != nil || most == 0 {
		return first, svc, on
	}
	first = l.late.head
	for passed := 0; int(first.Rows) > most; passed++ {
		if first = first.next; first == nil || passed == latePassed {
			return nil, nil, nil
		}
	}
	for _, o := range l.m.services {
		if p := freeFor(l, o); p != nil && int(first.Rows) <= o.MaxBatch && (on == nil || before(p, on) < 0) {
			svc, on = o, p
		}
	}
	return first, svc, on
}

// lateUnblocked is from when on requests that were given up block no other model.
func (svc *service) lateUnblocked(now Time, l *lane) Time {
	b := l.m.adaptive
	if b == nil || svc.Table == nil {
		return now
	}
	svc.load.Rows = min(svc.late, l.m.lateRows)
	at := svc.unblocked(now, &svc.load, b)
	svc.load.Rows = 0
	return at
}
