// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "math"

// model is one model's queue: its lanes, and the groups that serve it.
type model struct {
	id        ModelID
	spec      ModelSpec
	hurrier   Hurrier   // the discipline, if it may start candidates before their exec
	sizer     Sizer     // likewise, one of these
	stepper   Stepper   // likewise
	ranker    Ranker    // likewise
	preempter Preempter // likewise
	cycles    bool      // likewise, a Cycler
	services  []*service
	pool      *pool
	maxRows   int // the largest request that some service can run
	// fastest is the pointwise minimum over the profile classes in use: whoever
	// cannot make it on that cannot make it at all. Nil while some class has no
	// usable profile, or where nothing is dropped.
	fastest Table

	lanes    []*lane // all of them, idle ones too, in order of creation
	byKey    map[laneKey]*lane
	hot      *lane // the one used last
	idle     laneList
	avoiding int // waiting and late requests that avoid a partition

	requests, rows, late, lateRows int
	rate                           rate

	trial trial
	probe probe

	epoch      uint32  // of the rate that the services were last aimed with
	need       float64 // the mean of what its services say; its part of its pool's
	crowd      float64 // likewise its part
	flow, rush float64 // likewise
	dispersion float64 // of arrivals, as of that epoch; see rate.go

	// What its pool needed and had when the services were last weighed.
	weighedNeed   float64
	weighedUsable int
}

// setSpec normalises and stores a specification.
func (m *model) setSpec(spec ModelSpec) {
	if spec.Discipline == nil {
		spec.Discipline = adaptive{idle: defaultIdle}
	}
	if spec.Drop == nil {
		spec.Drop, _ = NewDropPolicy(spec.Discipline.DefaultDrop())
	}
	if spec.Drop == nil {
		spec.Drop = reserve{}
	}
	spec.MaxBatch = max(spec.MaxBatch, 1)
	m.spec = spec
	m.hurrier, _ = spec.Discipline.(Hurrier)
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
		l.laneKey = k
		m.byKey[k] = l
		m.idle.push(l)
	default:
		l = &lane{laneKey: k, m: m}
		l.timer.lane = l
		m.byKey[k] = l
		m.lanes = append(m.lanes, l)
		l.wire()
		m.idle.push(l)
	}
	m.hot = l
	return l
}

// wire gives the lane a candidate for every service of its model.
func (l *lane) wire() {
	l.cands = make([]candidate, len(l.m.services))
	for i := range l.cands {
		c := &l.cands[i]
		c.svc, c.lane = l.m.services[i], l
		c.order = slot{lane: l, cand: c}
	}
}

// serve derives what the model's lanes need from the groups that serve it.
func (m *model) serve(groups []*group) {
	m.services, m.pool, m.maxRows = nil, nil, 0
	profiled := m.spec.Drop.bounded() && len(m.spec.Classes) > 0
	for _, g := range groups {
		for _, sv := range g.serves {
			if sv.Model != m.id {
				continue
			}
			svc := &service{group: g, table: m.table(sv.Class), hope: m.hope(sv.Class), limit: m.spec.MaxBatch}
			if sv.MaxBatch > 0 {
				svc.limit = min(svc.limit, sv.MaxBatch)
			}
			svc.bounded = m.spec.Drop.bounded() && svc.table != nil
			svc.late = lateLimit(svc.table, svc.limit, m.spec.SLO)
			profiled = profiled && svc.table != nil
			m.services = append(m.services, svc)
			m.pool = g.pool
			m.maxRows = max(m.maxRows, svc.limit)
		}
	}
	m.need, m.crowd, m.flow, m.rush = 0, 0, 0, 0 // its pool is new
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
		tables = append(tables, svc.table)
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

// aimed makes sure that what depends on the rate is up to date; it reports
// whether it was not.
func (m *model) aimed(now Time) bool {
	m.rate.roll(now)
	if m.epoch == m.rate.epoch {
		if pl := m.pool; pl != nil && (pl.usable != m.weighedUsable || math.Abs(pl.need-m.weighedNeed) > heavier*m.weighedNeed) {
			m.weigh()
		}
		return false
	}
	m.aim()
	return true
}

// heavier is the change of a pool's load that is worth weighing it again.
const heavier = .01

// aim renews what depends on the rate: the batch sizes, and how many partitions
// the model keeps busy.
func (m *model) aim() {
	m.epoch = m.rate.epoch
	perSecond, _ := m.rate.perSecond()
	m.dispersion = m.rate.dispersion()
	sum := 0.0
	for _, svc := range m.services {
		svc.most = svc.limit
		if svc.table == nil {
			continue
		}
		svc.reach = reach(svc.table, svc.limit, m.spec.SLO, &m.rate)
		svc.need = perSecond / 1e9 * float64(svc.table.At(svc.reach)) / float64(svc.reach)
		sum += svc.need
		svc.saved = 1
		if svc.reach > 1 {
			row := float64(svc.table.At(svc.reach)-svc.table.At(1)) / float64(svc.reach-1)
			svc.saved = max(0, 1-row/float64(svc.table.At(1)))
		}
	}
	if m.pool == nil {
		return
	}
	need := sum / float64(len(m.services))
	m.pool.need = max(0, m.pool.need+need-m.need)
	m.need = need
	crowd := 0.0
	if need < 1 {
		crowd = need
	}
	m.pool.crowd = max(0, m.pool.crowd+crowd-m.crowd)
	m.crowd = crowd
	if slo := m.spec.SLO; slo > 0 {
		rush := perSecond / float64(slo)
		m.pool.flow = max(0, m.pool.flow+perSecond-m.flow)
		m.pool.rush = max(0, m.pool.rush+rush-m.rush)
		m.flow, m.rush = perSecond, rush
	}
	m.weigh()
}

// spare is the part of the slack that a discipline may spend on batches that
// start before they are as large as they could be, up to mostSpared: with partitions
// to spare, small batches would keep all of them awake.
const spare, mostSpared = .2, .1

// weigh renews what depends on the load of the whole pool: the batch that the
// drop policy holds on to, and the smallest that runs nearly as efficiently.
func (m *model) weigh() {
	pl := m.pool
	m.weighedNeed, m.weighedUsable = pl.need, pl.usable
	perSecond, known := m.rate.perSecond()
	load := pl.need / float64(max(1, pl.usable))
	for _, svc := range m.services {
		svc.most = svc.limit
		if svc.table == nil {
			continue
		}
		o := outlook{table: svc.table, slo: m.spec.SLO, reach: svc.reach, saved: svc.saved, perSecond: perSecond, need: svc.need / max(1, load), load: load, partitions: pl.usable}
		svc.hold, svc.edge = m.spec.Drop.hold(o)
		m.size(svc, load)
		svc.worth = svc.limit // while reach is a guess there is no reason to stop waiting
		if known {
			svc.worth = nearly(svc.table, svc.reach, max(0, min(mostSpared, spare*(1/load-1))))
		}
	}
}

// size asks a discipline with batch sizes of its own.
func (m *model) size(svc *service, load float64) {
	if m.sizer == nil {
		return
	}
	d := Demand{Table: svc.table, MaxBatch: svc.limit, SLO: m.spec.SLO, Dispersion: m.dispersion, Load: load}
	d.Rate, _ = m.rate.perSecond()
	if m.pool.rush > 0 {
		d.Around = Time(m.pool.flow / m.pool.rush)
	}
	for _, o := range m.services {
		d.Partitions += o.group.usable
	}
	svc.most = min(svc.limit, max(1, m.sizer.Most(d)))
	svc.hold = min(svc.hold, svc.most)
}
