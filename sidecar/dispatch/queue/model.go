// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"math"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// model is one model's queue: its lanes, and the cohorts that serve it.
type model struct {
	id   ModelID
	spec ModelSpec
	// adaptive are the discipline's rules, if it is that one: it starts candidates before
	// their exec, and holds batches back that would block other models. Nil for others.
	adaptive  *adaptive.Params
	sizer     Sizer     // the discipline, if it is one
	stepper   Stepper   // likewise
	ranker    Ranker    // likewise
	preempter Preempter // likewise
	cycles    bool      // likewise, a Cycler
	services  []*service
	pool      *pool
	maxRows   int // of the largest request that some service can run
	// fastest is the pointwise minimum over the profile classes in use: a request
	// that would be late by it cannot be in time on any executor. Nil while some
	// class has no usable profile, or where nothing is dropped.
	fastest Table

	lanes    []*lane // all of them, idle ones too
	byKey    map[laneKey]*lane
	hot      *lane // the one used last
	idle     laneList
	avoiding int // waiting and late requests that avoid an executor

	requests, rows, late, lateRows int
	rate                           rate

	levels    []*level // that requests had so far, by number
	occupied  int      // of them, with queued requests
	ahead     int      // batches since a level had its turn that waited behind a higher one
	lateAhead int      // the same of requests that were given up
	turns     uint64   // such turns

	trial trial
	probe probe

	perRequest float64        // rows, on average; zero while none has come
	claimed    int            // the rows that the model's slack is reckoned with
	epoch      uint32         // of the rate that the services were last aimed with
	share      adaptive.Share // its part of its pool's

	// The pool's Need and Usable at the last weigh.
	weighedNeed   float64
	weighedUsable int
}

// setSpec normalises and stores a specification.
func (m *model) setSpec(spec ModelSpec) {
	if spec.Discipline == nil {
		spec.Discipline, _ = Adaptive(adaptive.Defaults())
	}
	if spec.Drop == nil {
		spec.Drop, _ = NewDropPolicy(spec.Discipline.DefaultDrop())
	}
	if spec.Drop == nil {
		_, spec.Drop = Adaptive(adaptive.Defaults())
	}
	spec.MaxBatch = max(spec.MaxBatch, 1)
	m.spec = spec
	ours, _ := spec.Discipline.(adaptiveDiscipline)
	m.adaptive = ours.Params
	m.rate.bin = m.rate.width
	if spec.SLO > 0 {
		m.rate.bin = min(m.rate.bin, spec.SLO)
	}
	m.sizer, _ = spec.Discipline.(Sizer)
	m.stepper, _ = spec.Discipline.(Stepper)
	m.ranker, _ = spec.Discipline.(Ranker)
	m.preempter, _ = spec.Discipline.(Preempter)
	_, m.cycles = spec.Discipline.(Cycler)
}

// table returns the latency table of a profile class, nil if there is none.
func (m *model) table(class int32) Table {
	if class < 0 || int(class) >= len(m.spec.Classes) || len(m.spec.Classes[class]) < 2 {
		return nil
	}
	return m.spec.Classes[class]
}

// hope returns the optimistic table of a profile class, nil if there is none.
func (m *model) hope(class int32) Table {
	if m.table(class) == nil || int(class) >= len(m.spec.Optimistic) || len(m.spec.Optimistic[class]) < 2 {
		return nil
	}
	return m.spec.Optimistic[class]
}

// laneFor returns the lane of a key, recycling an idle one for a new key.
func (m *model) laneFor(k laneKey) *lane {
	if m.hot != nil && m.hot.laneKey == k {
		return m.hot
	}
	l := m.byKey[k]
	switch {
	case l != nil:
	case m.idle.n > idleLanes:
		l = m.idle.head
		l.leave()
		delete(m.byKey, l.laneKey)
		l.laneKey, l.level = k, m.levelOf(k.level)
		m.byKey[k] = l
		m.idle.push(l)
	default:
		l = &lane{laneKey: k, level: m.levelOf(k.level), m: m, at: len(m.lanes), lateExpiry: Never}
		l.timer.lane = l
		m.byKey[k] = l
		m.lanes = append(m.lanes, l)
		l.wire()
		m.idle.push(l)
	}
	m.hot = l
	return l
}

// shed removes idle lanes beyond maxIdleLanes, the oldest first, at most so many.
func (m *model) shed(most int) {
	for ; most > 0 && m.idle.n > maxIdleLanes; most-- {
		l := m.idle.head
		l.leave()
		delete(m.byKey, l.laneKey)
		last := len(m.lanes) - 1
		m.lanes[l.at] = m.lanes[last]
		m.lanes[l.at].at = l.at
		m.lanes[last] = nil
		m.lanes = m.lanes[:last]
		if m.hot == l {
			m.hot = nil
		}
	}
}

// wire gives the lane a candidate for every service of its model.
func (l *lane) wire() {
	l.cands = make([]candidate, len(l.m.services))
	for i := range l.cands {
		c := &l.cands[i]
		c.svc, c.lane = l.m.services[i], l
		c.Load = c.svc.load
		c.order = slot{lane: l, cand: c}
	}
}

// serve makes the model's services from the cohorts that serve it, and the values
// that depend on them.
func (m *model) serve(cohorts []*cohort) {
	m.services, m.pool, m.maxRows = nil, nil, 0
	profiled := m.spec.Drop.bounded && len(m.spec.Classes) > 0
	for _, g := range cohorts {
		if i, ok := slices.BinarySearchFunc(g.serves, m.id, func(s Service, id ModelID) int { return cmp.Compare(s.Model, id) }); ok {
			sv := g.serves[i]
			svc := &service{cohort: g, hope: m.hope(sv.Class), Model: adaptive.Model{Table: m.table(sv.Class), MaxBatch: m.spec.MaxBatch, SLO: m.spec.SLO}}
			svc.load = adaptive.Load{Model: &svc.Model, Pool: &g.pool.Pool}
			if sv.MaxBatch > 0 {
				svc.MaxBatch = min(svc.MaxBatch, sv.MaxBatch)
			}
			svc.Capacity = capacity(svc.Table, svc.MaxBatch, m.spec.SLO)
			svc.bounded = m.spec.Drop.bounded && svc.Table != nil
			svc.late = lateLimit(svc.Table, svc.MaxBatch, m.spec.SLO)
			profiled = profiled && svc.Table != nil
			m.services = append(m.services, svc)
			m.pool = g.pool
			m.maxRows = max(m.maxRows, svc.MaxBatch)
		}
	}
	m.share = adaptive.Share{} // its pool is new
	m.claim()
	m.aim()
	m.fastest = nil
	if m.services == nil {
		m.maxRows = m.spec.MaxBatch
	}
	if !profiled {
		return
	}
	var tables []Table
	for _, svc := range m.services {
		tables = append(tables, svc.Table)
	}
	if tables == nil {
		for class := range m.spec.Classes {
			if t := m.table(int32(class)); t != nil {
				tables = append(tables, t)
			}
		}
	}
	if tables == nil {
		return
	}
	m.fastest = make(Table, m.maxRows+1)
	for b := 1; b < len(m.fastest); b++ {
		m.fastest[b] = Never
		for _, t := range tables {
			m.fastest[b] = min(m.fastest[b], t.At(b))
		}
	}
}

// unserve subtracts the model's share from the sums of its pool.
func (m *model) unserve() {
	pl := m.pool
	if pl == nil {
		return
	}
	pl.Kept.Release(&m.share)
	pl.Need, pl.Crowd = max(0, pl.Need-m.share.Need), max(0, pl.Crowd-m.share.Crowd)
	pl.Flow, pl.Urgency = max(0, pl.Flow-m.share.Flow), max(0, pl.Urgency-m.share.Urgency)
	m.share = adaptive.Share{}
}

// claim works out how long a lone request can wait for an executor, and has the pool
// keep executors from batches that take longer.
func (m *model) claim() {
	m.claimed = m.usual()
	slack, known := Time(0), false
	m.share.Alone = 0
	for _, svc := range m.services {
		svc.Usual, svc.Alone = m.claimed, svc.Table.At(m.claimed)
		m.share.Alone = max(m.share.Alone, svc.Alone)
		if svc.Table != nil && m.spec.SLO > 0 { // the fastest class decides
			slack, known = max(slack, m.spec.SLO-svc.Table.At(m.claimed)), true
		}
	}
	if !known {
		slack = Never
	}
	for _, svc := range m.services {
		svc.Slack = slack
	}
	if m.adaptive != nil && m.pool != nil && slack > 0 && known {
		m.pool.Kept.Claim(slack, &m.share, m.adaptive.Keep, m.adaptive.Chance)
	}
}

// usual is how many rows a request has, on average.
func (m *model) usual() int { return max(1, int(math.Round(m.perRequest))) }

// manyRequests is over how many requests rows are averaged, more or less.
const manyRequests = 64

// asks counts a request's rows.
func (m *model) asks(rows int32) { m.perRequest += (float64(rows) - m.perRequest) / manyRequests }

// lateLimit bounds batches of requests that were given up: to what takes half
// the SLO, so that a request that arrives meanwhile can still make it, or twice
// the time of a single row where that is more, so that rows still share the
// fixed cost. Where even one row takes longer than the SLO no request can make
// it, and only the throughput is left to care for.
func lateLimit(t Table, limit int, slo Time) int {
	if t == nil || t.At(1) > slo {
		return limit
	}
	longest := max(slo/2, 2*t.At(1))
	b := 1
	for b < limit && t.At(b+1) <= longest {
		b++
	}
	return b
}

// capacity is how many rows one executor executes within an SLO, at most.
func capacity(t Table, limit int, slo Time) int {
	best := 0
	for b := 1; b <= limit && t.At(b) > 0; b++ {
		best = max(best, b*int(slo/t.At(b)))
	}
	return best
}

// aimed makes sure that what depends on the rate is up to date; it reports
// whether it was not.
func (m *model) aimed(now Time) bool {
	m.rate.roll(now)
	if m.epoch == m.rate.epoch {
		if pl := m.pool; pl != nil && (pl.Usable != m.weighedUsable || math.Abs(pl.Need-m.weighedNeed) > heavier*m.weighedNeed) {
			m.weigh()
		}
		return false
	}
	m.aim()
	return true
}

// heavier is the relative change of a pool's load from which on weigh is called again.
const heavier = .01

// aim renews the values that depend on the rate: the batch sizes, and the number of
// executors that the model keeps busy.
func (m *model) aim() {
	m.epoch = m.rate.epoch
	if m.pool != nil && m.claimed != m.usual() {
		m.pool.Kept.Release(&m.share)
		m.claim()
	}
	perSecond, known := m.rate.perSecond()
	dispersion := m.rate.dispersion()
	sum := 0.0
	m.share.Long, m.share.Burst, m.share.Executors = 0, 1, 0
	for _, svc := range m.services {
		svc.most = svc.MaxBatch
		svc.Known, svc.Rate, svc.Dispersion = known, perSecond, dispersion
		if svc.Table == nil {
			continue
		}
		svc.Reach = reach(svc.Table, svc.MaxBatch, m.spec.SLO, &m.rate)
		svc.Need = perSecond / 1e9 * float64(svc.Table.At(svc.Reach)) / float64(svc.Reach)
		sum += svc.Need
		svc.Saved = 1
		if svc.Reach > 1 {
			row := float64(svc.Table.At(svc.Reach)-svc.Table.At(1)) / float64(svc.Reach-1)
			svc.Saved = max(0, 1-row/float64(svc.Table.At(1)))
		}
		if svc.Slack > 0 && svc.Slack < Never {
			m.share.Executors += float64(svc.cohort.usable) * max(0, float64(m.spec.SLO-svc.Alone)/float64(svc.Slack))
		}
		m.share.Long = max(m.share.Long, svc.Table.At(svc.Reach))
		m.share.Burst = max(m.share.Burst, adaptive.Burst(svc.Table, svc.MaxBatch, dispersion))
	}
	if m.pool == nil {
		return
	}
	need := sum / float64(len(m.services))
	m.pool.Need = max(0, m.pool.Need+need-m.share.Need)
	m.pool.Kept.Moved(need - m.share.Need)
	m.share.Need = need
	crowd := 0.0
	if need < 1 {
		crowd = need
	}
	m.pool.Crowd = max(0, m.pool.Crowd+crowd-m.share.Crowd)
	m.share.Crowd = crowd
	if slo := m.spec.SLO; slo > 0 {
		urgency := perSecond / float64(slo)
		m.pool.Flow = max(0, m.pool.Flow+perSecond-m.share.Flow)
		m.pool.Urgency = max(0, m.pool.Urgency+urgency-m.share.Urgency)
		m.share.Flow, m.share.Urgency = perSecond, urgency
	}
	m.weigh()
}

// weigh renews the values that depend on the load of the whole pool: the largest
// batch, the batch that need not wait for more requests, and the batch that the drop
// policy holds on to.
func (m *model) weigh() {
	pl := m.pool
	pl.Kept.Renew(pl.Need, pl.Usable)
	m.weighedNeed, m.weighedUsable = pl.Need, pl.Usable
	executors := 0
	for _, svc := range m.services {
		executors += svc.cohort.usable
	}
	for _, svc := range m.services {
		svc.most = svc.MaxBatch
		if svc.Table == nil {
			continue
		}
		svc.Executors = executors
		svc.hold, svc.edge = m.spec.Drop.hold(&svc.load, pl.Load())
		if m.sizer != nil {
			svc.most = min(svc.MaxBatch, max(1, m.sizer.MaxRows(&svc.load)))
			svc.hold = min(svc.hold, svc.most)
		}
		if m.adaptive != nil {
			svc.Worth = m.adaptive.Worth(&svc.load)
		}
	}
}
