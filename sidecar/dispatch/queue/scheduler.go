// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// Options tune a Scheduler; the zero value is what Symphony uses.
type Options struct {
	// RateWindow is the time over which arrival rates are averaged; zero means 5 s.
	RateWindow Time
	// Trial is the shortest time between two trials of a model: executions that test
	// whether requests that its profile rules out can be served in time (see
	// trial.go). Zero means that profiles are true and that there are no trials.
	Trial Time
	// Late is called with a request that was given up and is kept to be served nevertheless, and 1, and with -1 when it is not kept any more. It must not
	// call the Scheduler back. It may be nil.
	Late func(r *Request, more int)
}

// Scheduler holds the queues of all models and the state of all executors. It
// is not safe for concurrent use: the caller serialises calls. Time may not run
// backwards; an earlier now than before counts as the one before.
//
// Every call first does what was due until then, so that calling late delays
// decisions but loses none.
type Scheduler struct {
	sink      Sink
	preemptor Preemptor // the sink, if it is one
	window    Time
	trial     Time
	late      func(*Request, int)
	now       Time

	models    []*model    // by identifier; nil where removed
	executors []*executor // by identifier; nil where removed
	cohorts   []*cohort
	byKey     map[string]*cohort
	pools     []*pool
	timers    heap // lanes and pools, by the moment at which something is due
	free      int
	turn      int // the model that renew looked at last
	stats     Stats

	lost   []*Request // scratch of takeOver
	filled []*lane    // of grant: lanes that a batch was filled from and that are not matched yet

	held  int  // open Reconfigure calls
	dirty bool // cohorts have changed
	// altered: cohorts serve something else, concerned are the models that this concerns.
	altered   bool
	concerned map[ModelID]bool
	// respecified are the models whose specification has changed while held.
	respecified []*model
}

// New returns a Scheduler without models and executors.
func New(sink Sink, o Options) *Scheduler {
	if o.RateWindow <= 0 {
		o.RateWindow = 5e9
	}
	if o.Late == nil {
		o.Late = func(*Request, int) {}
	}
	preemptor, _ := sink.(Preemptor)
	return &Scheduler{
		sink: sink, preemptor: preemptor, window: o.RateWindow, trial: o.Trial, late: o.Late, byKey: make(map[string]*cohort),
		concerned: make(map[ModelID]bool),
		models:    make([]*model, 1), executors: make([]*executor, 1),
	}
}

// Enqueue adds a request to a model's queue. A request that can never be served
// is dropped at once: its model does not exist (DropModelRemoved), allows
// fewer rows than it has (DropTooLarge), or has no room at its level (DropFull). It panics if the request is queued.
func (s *Scheduler) Enqueue(now Time, id ModelID, r *Request) {
	now = s.advance(now)
	s.stats.Enqueued++
	m := s.prepare(id, r)
	if m == nil {
		return
	}
	m.rate.add(now, r.Rows)
	m.asks(r.Rows)
	s.renew(m, now)
	if m.full(r) {
		s.drop(r, DropFull)
		return
	}
	s.admit(m, r, now)
	s.end(m.pool, now)
}

// Requeue puts a request back after its batch failed, in deadline order. Set
// Request.Avoid to the executor that failed: the request then starts as soon as
// another executor is free. It counts neither as Enqueued nor
// towards the arrival rate. Within Reconfigure, the requests of a failed batch
// can be put back together and share their second batch as well.
func (s *Scheduler) Requeue(now Time, id ModelID, r *Request) {
	now = s.advance(now)
	s.stats.Requeued++
	m := s.prepare(id, r)
	if m == nil {
		return
	}
	s.admit(m, r, now)
	s.end(m.pool, now)
}

// renew updates the values that depend on a model's rate. If they were out of date,
// it does so for one other model too, in turn, because a model without new requests
// has no call of its own.
func (s *Scheduler) renew(m *model, now Time) {
	if !m.aimed(now) {
		return
	}
	s.turn = (s.turn + 1) % len(s.models)
	if o := s.models[s.turn]; o != nil {
		o.shed(shedAtOnce)
		o.aimed(now)
	}
}

// prepare resolves the model and the request's defaults; it returns nil if the
// request was dropped.
func (s *Scheduler) prepare(id ModelID, r *Request) *model {
	if r.listed != listedNowhere {
		panic("queue: request is queued already")
	}
	r.Rows = max(r.Rows, 1)
	m := s.model(id)
	if m == nil {
		s.drop(r, DropModelRemoved)
		return nil
	}
	if m.spec.Closed {
		s.drop(r, DropClosed)
		return nil
	}
	if r.Deadline == 0 {
		r.Deadline = Never
		if m.spec.SLO > 0 {
			r.Deadline = r.Arrival + m.spec.SLO
		}
	}
	if r.Expiry == 0 {
		r.Expiry = Never
	}
	if int(r.Rows) > m.spec.MaxBatch {
		s.drop(r, DropTooLarge)
		return nil
	}
	return m
}

func (s *Scheduler) admit(m *model, r *Request, now Time) {
	m.shed(shedAtOnce)
	l := m.laneFor(laneKey{r.Key, r.Avoid, r.Level})
	s.insert(l, r, false)
	if s.held > 0 {
		return // matched by the end of Reconfigure
	}
	if r.next == nil && r.prev != nil && m.stepper == nil && !r.expired(now) {
		s.extend(l, r, now)
	} else {
		s.match(l, now)
	}
}

// insert puts a request into its lane; first among equal deadlines if it had been
// there before.
func (s *Scheduler) insert(l *lane, r *Request, first bool) {
	if l.on == &l.m.idle {
		l.leave()
	}
	r.lane, r.listed = l, listedWaiting
	l.waiting.insert(r, first)
	l.expires = l.expires || r.Expiry != Never
	s.count(l, 1, int(r.Rows))
}

// extend is match for the usual case, a request that arrives at the end of the
// queue: it can only enlarge candidates that held the whole queue.
func (s *Scheduler) extend(l *lane, r *Request, now Time) {
	changed := false
	for i := range l.cands {
		c := &l.cands[i]
		switch {
		case c.Requests == 0:
			c.gather(now, r)
			changed = changed || c.Requests > 0
		case c.last == r.prev && !c.Full:
			c.take(now, r)
			c.mark()
			changed = true
		}
	}
	if !changed {
		if r.Expiry != Never {
			s.wake(l, min(s.timers.key(&l.timer), r.Expiry+1))
		}
		return
	}
	if c, p := s.choose(l, now); c != nil {
		s.grant(c, p, now, c.exec > now)
		s.match(l, now)
		return
	}
	s.park(l, now)
}

// Cancel takes a request out of its queue. It returns false if the request is
// not queued: it was dispatched, dropped or cancelled before.
func (s *Scheduler) Cancel(now Time, r *Request) bool {
	now = s.advance(now)
	if r.listed == listedNowhere {
		return false
	}
	l := r.lane
	s.take(l, r)
	s.stats.Cancelled++
	switch {
	case s.held == 0:
		s.match(l, now)
	case l.n == 0:
		s.rest(l) // the end of Reconfigure matches lanes that have requests
	}
	s.end(l.m.pool, now)
	return true
}

// Complete ends the executor's batch, whether it succeeded or failed. Every
// Dispatch needs exactly one Complete; it does nothing if the executor runs no
// batch. The batch must not be used afterwards.
func (s *Scheduler) Complete(now Time, id ExecutorID) {
	now = s.advance(now)
	p := s.executor(id)
	if p == nil || !p.busy {
		return
	}
	s.found(p, now)
	if p.usable() {
		p.cohort.pool.runs(p, -1)
	}
	p.busy = false
	clear(p.batch.Requests)
	s.idle(p, now)
	s.end(p.cohort.pool, now)
}

// idle makes an executor available if it may be.
func (s *Scheduler) idle(p *executor, now Time) {
	if p.busy || !p.usable() {
		return
	}
	if !p.free {
		p.since = now
	}
	s.setFree(p, true)
	if s.held == 0 {
		s.freed(p, now)
	}
}

// Next returns the moment at which Advance has something to do, Never if that
// takes another event first.
func (s *Scheduler) Next() Time { return s.timers.min() }

// Advance does everything that is due at now: candidates start, and requests are dropped. Call it at the time that Next returns.
func (s *Scheduler) Advance(now Time) { s.advance(now) }

// advance starts an event: everything that is due comes first.
func (s *Scheduler) advance(now Time) Time {
	s.now = max(s.now, now)
	if s.held == 0 {
		for len(s.timers) > 0 && s.timers[0].key <= s.now {
			due := s.timers[0].s
			pl := due.pool
			if l := due.lane; l != nil {
				s.match(l, s.now)
				pl = l.m.pool
			}
			s.matchPool(pl, s.now)
		}
	}
	return s.now
}

// end finishes an event that concerned one pool.
func (s *Scheduler) end(pl *pool, now Time) {
	if s.held == 0 {
		s.matchPool(pl, now)
	}
}

// count adjusts the numbers of waiting requests and rows.
func (s *Scheduler) count(l *lane, requests, rows int) {
	was := l.n
	l.n += requests
	l.rows += rows
	m := l.m
	m.requests += requests
	m.rows += rows
	m.holds(l.level, requests)
	s.stats.QueuedRequests += requests
	if l.avoid != NoExecutor {
		m.avoiding += requests
	}
	if d := sign(l.n) - sign(was); d != 0 {
		s.stats.WaitingLanes += d
		if m.pool != nil {
			m.pool.waiting += d
		}
	}
}

// countLate adjusts the numbers of requests and rows that were given up and
// are kept.
func (s *Scheduler) countLate(l *lane, requests, rows int) {
	l.nlate += requests
	l.m.late += requests
	l.m.lateRows += rows
	l.m.holds(l.level, requests)
	if l.m.late == 0 {
		l.m.trialDone()
	}
	s.stats.LateRequests += requests
	if l.avoid != NoExecutor {
		l.m.avoiding += requests
	}
	switch {
	case l.nlate == 0:
		l.lateExpiry = Never
		l.leave()
		if l.n == 0 {
			s.timers.remove(&l.timer) // of its late requests: the lane may be gone by then
			l.m.idle.push(l)
		}
	case l.on == nil && l.m.pool != nil:
		l.m.pool.late.push(l)
	}
}

func sign(n int) int {
	if n > 0 {
		return 1
	}
	return 0
}

// take removes a queued request from its lane.
func (s *Scheduler) take(l *lane, r *Request) {
	if r.listed == listedLate {
		l.late.cut(r, r)
		s.countLate(l, -1, -int(r.Rows))
		s.late(r, -1)
	} else {
		l.waiting.cut(r, r)
		s.count(l, -1, -int(r.Rows))
	}
	r.lane, r.listed = nil, listedNowhere
}

// giveUp drops a waiting request, or moves it to the late requests of its lane.
func (s *Scheduler) giveUp(l *lane, r *Request, why DropReason) {
	s.take(l, r)
	if tried := why == DropLate && s.tries(l.m, r); l.m.spec.Late == LateDrop && !tried {
		s.drop(r, why)
		return
	}
	s.keep(l, r, why)
}

// expire ends the wait of a request whose expiry has passed: it is dropped, or joins the late requests of its lane.
func (s *Scheduler) expire(l *lane, r *Request) {
	s.take(l, r)
	if r.Expired == LateDrop {
		s.drop(r, DropExpired)
		return
	}
	s.keep(l, r, DropExpired)
}

// keep adds a request to the late requests of its lane.
func (s *Scheduler) keep(l *lane, r *Request, why DropReason) {
	r.lane, r.listed = l, listedLate
	l.late.insertAfter(r, l.late.tail)
	if r.Expired == LateDrop {
		l.lateExpiry = min(l.lateExpiry, r.Expiry)
	}
	s.countLate(l, 1, int(r.Rows))
	s.late(r, 1)
	s.stats.GivenUp[why]++
}

// expireLate drops the late requests of a lane that are not to be served after their expiry.
func (s *Scheduler) expireLate(l *lane, now Time) {
	if now <= l.lateExpiry {
		return
	}
	next := Never
	for r, after := l.late.head, (*Request)(nil); r != nil; r = after {
		after = r.next
		switch {
		case r.Expired != LateDrop:
		case r.expired(now):
			s.expire(l, r)
		default:
			next = min(next, r.Expiry)
		}
	}
	l.lateExpiry = next
}

func (s *Scheduler) drop(r *Request, why DropReason) {
	s.stats.Dropped[why]++
	s.sink.Drop(r, why)
}

func (s *Scheduler) model(id ModelID) *model {
	if id <= 0 || int(id) >= len(s.models) {
		return nil
	}
	return s.models[id]
}

func (s *Scheduler) executor(id ExecutorID) *executor {
	if id <= 0 || int(id) >= len(s.executors) {
		return nil
	}
	return s.executors[id]
}
