// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// The latency table decides which batches are executed, and only executed batches
// can correct the table. Two kinds of execution go against the table, each at a
// bounded rate.
//
// A trial executes a request that the table alone rules out: one that would have
// missed its deadline even if it had started when it arrived. Without trials, a model
// whose l(1) is above its SLO by the table would never run again under LateDrop. A
// model has one trial at a time. The first comes when nothing as large was executed
// for Options.Trial, and then there is at most one per Options.Trial. Each trial that
// took as long as the table says halves the rate, down to one in 16 Options.Trial.
// Trials take executors that are left over. If lanes always wait, trials take at
// most a thirty-second of the pool's time.
//
// A probe is a batch that misses the deadline of its first request by the table, but
// not by ModelSpec.Optimistic. At most one batch in 16 of a model is a probe. Each
// probe that took longer than hoped halves the rate, down to one in 1024.
const (
	trialSlowest = 16 // times Options.Trial
	trialShare   = 32 // one part in so many of a pool's time, while other lanes wait
	// A trial that takes less than this part of the predicted time shows that the table is wrong.
	trialSurprise = .9

	probeOften, probeSeldom = 16, 1024
	// A size is probed if its optimistic latency is at most this part of that of the table.
	probeHope = .75
	// A probe has at most so many times the rows that the table allows.
	probeGrowth = 2
)

// trial is when a model's next trial may be.
type trial struct {
	next, every Time
	rows        int32 // of the request that was condemned last
	// owed is true while the model has a late request which must be tried.
	owed bool
}

// probe counts the batches of a model between probes.
type probe struct{ since, gap int }

// experiment says whether a running batch is a trial, a probe or neither.
type experiment uint8

const (
	experimentNone experiment = iota
	experimentTrial
	experimentProbe
)

// condemned reports whether the table alone rules a request out: it would be late even if
// it had been started when it arrived.
func (m *model) condemned(r *Request) bool {
	return m.fastest != nil && int(r.Rows) < len(m.fastest) && r.Arrival+m.fastest[r.Rows] > r.Deadline
}

// tries decides whether a request that was given up is to be tried.
func (s *Scheduler) tries(m *model, r *Request) bool {
	t := &m.trial
	if s.trial == 0 || m.pool == nil || !m.condemned(r) {
		return false
	}
	t.rows = r.Rows
	if t.every == 0 {
		t.every, t.next = s.trial, s.now+s.trial
	}
	if t.owed || s.now < t.next {
		return false
	}
	t.next = s.now + t.every
	t.owed = true
	m.pool.owed++
	s.stats.Trials++
	return true
}

// executes notes a batch of requests that were not given up: while such batches show what
// l(b) is, nothing smaller is tried.
func (t *trial) executes(rows int, now, pause Time) {
	if t.every > 0 && rows >= int(t.rows) {
		t.next = max(t.next, now+pause)
	}
}

// trialDone clears a model's owed trial: a late request was dispatched, or none is left.
func (m *model) trialDone() {
	if !m.trial.owed {
		return
	}
	m.trial.owed = false
	if m.pool != nil {
		m.pool.owed--
	}
}

// mayForce reports whether a trial may take an executor now that other lanes wait for.
func (pl *pool) mayForce(now Time) bool { return pl.owed > 0 && now >= pl.forced }

// force notes that a trial took an executor that other lanes waited for.
func (pl *pool) force(now, took Time) {
	pl.forced = now + trialShare*max(1, took)/Time(max(1, pl.Usable))
}

// vary makes every sixteenth batch of a model without a usable profile half as large as it
// could be: a model that is never without a backlog would otherwise be executed with one
// batch size only, and the latencies of the others would stay unknown.
func (c *candidate) vary() {
	m := c.lane.m
	if c.svc.Table != nil || m.stepper != nil || m.probe.since < probeOften || c.Requests < 2 {
		return
	}
	c.trim(max(1, c.Rows/2))
	m.probe.since = 0
}

// widen makes a candidate that is about to start into a probe, if one is due: it adds waiting
// requests as long as the deadline holds by the optimistic table. It reports whether it did.
func (c *candidate) widen(now Time) bool {
	l, svc := c.lane, c.svc
	m := l.m
	if svc.hope == nil || m.stepper != nil || l.avoid != NoExecutor || m.probe.since < max(m.probe.gap, probeOften) {
		return false
	}
	most := min(svc.MaxBatch, probeGrowth*c.Rows)
	rows, requests, last := c.Rows, c.Requests, c.last
	for r := last.next; r != nil && rows+int(r.Rows) <= most && now+svc.hope.At(rows+int(r.Rows)) <= c.Deadline; r = r.next {
		rows, requests, last = rows+int(r.Rows), requests+1, r
	}
	if rows == c.Rows || now+svc.Table.At(rows) <= c.Deadline || float64(svc.hope.At(rows)) > probeHope*float64(svc.Table.At(rows)) {
		return false
	}
	c.Rows, c.Requests, c.last = rows, requests, last
	m.probe.since = 0
	return true
}

// found adapts the rate of trials or probes to the result of one that has ended.
func (s *Scheduler) found(p *executor, now Time) {
	m := s.model(p.batch.Model)
	what := p.experiment
	p.experiment = experimentNone
	if m == nil || what == experimentNone {
		return
	}
	took, believed := now-p.batch.Start, p.batch.Finish-p.batch.Start
	switch what {
	case experimentTrial:
		if float64(took) < trialSurprise*float64(believed) {
			m.trial.every = s.trial
			m.trial.next = min(m.trial.next, now+s.trial)
		} else {
			m.trial.every = min(2*m.trial.every, trialSlowest*s.trial)
			m.trial.next = max(m.trial.next, now+m.trial.every)
		}
	case experimentProbe:
		if float64(took) < (1+probeHope)/2*float64(believed) {
			m.probe.gap = probeOften
		} else {
			m.probe.gap = min(2*max(m.probe.gap, probeOften), probeSeldom)
		}
	}
}
