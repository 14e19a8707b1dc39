// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"slices"
)

// levelShare bounds what the lower priority levels of a model wait for: of levelShare batches in a row for which levels of the model compete, one at
// the least is of a level that waits behind a higher one. Of several such levels it is the one whose turn was longest ago. So a level behind k others
// gets at least one part in levelShare*k of the batches while it waits, and the highest level keeps (levelShare-1)/levelShare of them. Triton's
// own queue has no such bound (model configuration, "Priority Levels": a lower level waits as long as a higher one has requests).
//
// All levels that have requests compete for an executor that one of them takes, those whose exec has not come too: a lower level whose batch waits on purpose, as
// it has time to, would else find a higher one before it at the end of that time. Between the models of an executor nothing changes: a model's turn comes
// by its most urgent candidate, whatever its level, and the levels decide which of its candidates takes that turn.
const levelShare = 16

// level is a priority level of a model: what of it is queued, in all lanes.
type level struct {
	number int32
	queued int // requests, those that were given up included
	// turn and lateTurn are of the model's turns the last that it took before a higher level, with requests that can be in time and with others.
	turn, lateTurn uint64
}

// levelOf returns a level of the model by its number.
func (m *model) levelOf(number int32) *level {
	i, ok := slices.BinarySearchFunc(m.levels, number, func(v *level, n int32) int { return cmp.Compare(v.number, n) })
	if !ok {
		m.levels = slices.Insert(m.levels, i, &level{number: number})
	}
	return m.levels[i]
}

// holds adjusts the number of queued requests of a level.
func (m *model) holds(v *level, requests int) {
	was := v.queued
	v.queued += requests
	m.occupied += sign(v.queued) - sign(was)
}

// full reports whether a request's level has no room for it (model configuration, "Queue Policy": max_queue_size).
func (m *model) full(r *Request) bool {
	return r.MaxQueue > 0 && m.levelOf(r.Level).queued >= int(r.MaxQueue)
}

// hastens reports whether a candidate starts without waiting for more requests: its level has no room for another one.
func (c *candidate) hastens() bool {
	return c.Requests > 0 && c.last.MaxQueue > 0 && c.lane.level.queued >= int(c.last.MaxQueue)
}

// first returns the candidate that takes the turn of c's model on an executor: that of the highest level, or that of a lower level whose turn it is. Neither
// waits for its exec while the other would take the executor; what room its batch has, fill gives to the lower. Allowed says which lanes may use the executor.
func (m *model) first(c *candidate, allowed func(*lane) bool) *candidate {
	if m.occupied < 2 {
		return c
	}
	service := slices.Index(m.services, c.svc)
	blocked := &c.svc.cohort.blocked
	top, low := c, (*candidate)(nil)
	for _, l := range m.lanes {
		o := &l.cands[service]
		if o.Requests == 0 || (o.in == blocked) != (c.in == blocked) || !allowed(l) {
			continue
		}
		higher := cmp.Compare(l.level.number, top.lane.level.number)
		if higher < 0 || higher == 0 && o.in == top.in && o.Latest < top.Latest {
			top = o
		}
	}
	if m.ahead < levelShare-1 {
		return top
	}
	for _, l := range m.lanes {
		o := &l.cands[service]
		if l.level.number <= top.lane.level.number || o.Requests == 0 || (o.in == blocked) != (c.in == blocked) || !allowed(l) {
			continue
		}
		if low == nil || cmp.Or(cmp.Compare(l.level.turn, low.lane.level.turn), cmp.Compare(o.Latest, low.Latest)) < 0 {
			low = o
		}
	}
	if low != nil {
		return low
	}
	return top
}

// othersWait reports whether requests of other levels than the lane's are queued.
func (m *model) othersWait(l *lane) bool { return m.occupied > sign(l.level.queued) }

// takesTurn counts a batch of a lane that is about to start, for levelShare: whether a lower level waits behind it, or a higher one.
func (m *model) takesTurn(l *lane, svc *service) {
	if !m.othersWait(l) {
		return
	}
	service, lower := slices.Index(m.services, svc), false
	for _, o := range m.lanes {
		switch {
		case o.n == 0 || o.cands[service].Requests == 0:
		case o.level.number < l.level.number:
			m.turns++
			m.ahead, l.level.turn = 0, m.turns
			return
		default:
			lower = lower || o.level.number > l.level.number
		}
	}
	if lower {
		m.ahead++
	}
}

// fill adds requests of the model's other levels to a batch that has room for them, the highest level first, each in its own deadline order: a batch is not
// smaller because its requests have several levels. Those that could not finish in a batch of the size that the drop policy holds on to are passed over if
// later ones can take their place, as grant gives them up in a batch of their own. The lanes that it took requests of are added to s.filled; the batch
// ends with their last one.
func (s *Scheduler) fill(c *candidate, now Time) {
	l, svc := c.lane, c.svc
	if !l.m.othersWait(l) || l.avoid != NoExecutor || l.m.stepper != nil {
		return
	}
	fits := func(rows int, deadline Time) bool {
		return rows <= svc.most && (!svc.bounded || now+svc.Table.At(rows) <= deadline)
	}
	for _, v := range l.m.levels {
		o := l.m.byKey[laneKey{l.key, NoExecutor, v.number}]
		if o == nil || o == l || o.n == 0 {
			continue
		}
		least := c.Rows // of the batch, with the longest tail of the lane that fits
		for r := o.waiting.tail; r != nil && least < svc.hold && fits(least+int(r.Rows), min(c.Deadline, r.Deadline)); r = r.prev {
			least += int(r.Rows)
		}
		r := o.waiting.head
		for r != nil && !fits(max(least, c.Rows+int(r.Rows)), min(c.Deadline, r.Deadline)) {
			r = r.next
		}
		first, last := r, (*Request)(nil)
		requests, rows := 0, 0
		for ; r != nil && !r.expired(now) && fits(c.Rows+rows+int(r.Rows), min(c.Deadline, r.Deadline)); r = r.next {
			c.Deadline = min(c.Deadline, r.Deadline)
			last, rows, requests = r, rows+int(r.Rows), requests+1
		}
		if last == nil {
			continue
		}
		o.waiting.cut(first, last)
		s.count(o, -requests, -rows)
		c.last.next, c.last = first, last
		c.Rows += rows
		s.filled = append(s.filled, o)
	}
}

// behind reports whether a candidate is of the same model as another, and of a lower level.
func (c *candidate) behind(o *candidate) bool {
	return c.lane.m == o.lane.m && c.lane.level.number > o.lane.level.number
}

// firstLate is first for the lanes of l's model that have requests which were given up.
func (m *model) firstLate(l *lane) *lane {
	if m.occupied < 2 {
		return l
	}
	top, low := l, (*lane)(nil)
	for _, o := range m.lanes {
		if o.nlate > 0 && o.level.number < top.level.number {
			top = o
		}
	}
	if m.lateAhead < levelShare-1 {
		return top
	}
	for _, o := range m.lanes {
		if o.nlate > 0 && o.level.number > top.level.number && (low == nil || o.level.lateTurn < low.level.lateTurn) {
			low = o
		}
	}
	if low != nil {
		return low
	}
	return top
}

// takesLateTurn is takesTurn for requests that were given up.
func (m *model) takesLateTurn(l *lane) {
	if !m.othersWait(l) {
		return
	}
	lower := false
	for _, o := range m.lanes {
		switch {
		case o.nlate == 0:
		case o.level.number < l.level.number:
			m.turns++
			m.lateAhead, l.level.lateTurn = 0, m.turns
			return
		default:
			lower = lower || o.level.number > l.level.number
		}
	}
	if lower {
		m.lateAhead++
	}
}
