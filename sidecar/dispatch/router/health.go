// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// A server that answers every execution with an error at once is always free, so it would get every request. Each place therefore has a health,
// which the executions on it decide. A place whose executions fail in a row, or far more often than those of the model's other places, is ejected:
// it gets no lease and no batch for a time that doubles with every ejection (outlier ejection, as in Envoy). It is then on probation: its next
// execution decides.
//
// The last usable place of a model is never ejected, unless the model is a merge group. Its requests wait meanwhile, and the function
// Options.PlaceChanged has the group's members serve them.
//
// Only faults count, for which a request cannot be blamed. What refuses a request says nothing of the place: see forward.Faulted. A fault that the
// request repeats on another place was the request's own, and is excused.
//
// A place whose server does not have the model, because another client has unloaded it there, is passed over for absencePause, as an ejected one is.

const (
	// patience is how many executions in a row fail before a place is ejected.
	patience = 3
	// A place is also ejected when at least half of its leastExecutions or more executions within rateWindow have failed, and the other places of
	// its model fail at most half as often.
	leastExecutions = 10
	rateWindow      = 30 * time.Second
	// The time of an ejection. It doubles with each that follows within the same time after the last.
	firstEjection = time.Second
	lastEjection  = time.Minute
	// absencePause is how long a place is passed over whose server does not have the model.
	absencePause = 250 * time.Millisecond
)

// standing is the state of a place's health.
type standing uint8

const (
	healthy standing = iota
	// ejected: nothing runs there.
	ejected
	// onProbation: the next execution decides. The queue has one at a time there (Unsettled), and requests outside it come one by one.
	onProbation
)

// health of a place. The counters are atomic; the rest is guarded by Router.mu.
type health struct {
	row       atomic.Int32  // faults since the last execution that succeeded
	good, bad atomic.Uint32 // executions within the present window
	window    time.Time     // when that began
	unsettled atomic.Bool   // standing is not healthy

	standing standing
	since    time.Time     // of the standing
	period   time.Duration // of the last ejection
	until    time.Time     // end of the ejection
	cause    string        // the fault that led to it
	end      clock.Timer   // of the ejection
	absent   bool          // the last ejection was for want of the model
	excused  bool          // the last ejection ended because a request had caused the faults
}

// PlaceHealth says how a place of the table in force stands.
type PlaceHealth struct {
	Model, Partition string
	// Ejected: nothing runs there before Until. Else, with a Cause, the place is on probation: its next execution decides.
	Ejected bool
	Since   time.Time
	Until   time.Time
	// Cause is the text of the fault that led to the ejection; empty for a healthy place.
	Cause string
	// Group: the model is a merge group, whose members can be served without it.
	Group bool
	// Excused: the place is healthy again because the faults were those of a request.
	Excused bool
	// Absent: the place is, or was until now, passed over because its server does not have the model.
	Absent bool
}

// executes returns the place where executions for a place happen: that of its merge group, or the place itself. Guarded by
// Router.mu.
func (l *place) executes() *place {
	if l.group != nil {
		return l.group
	}
	return l
}

// at is the place where executions under the lease happen; nil: the lease is for no model.
func (l Lease) at() *place {
	if l.group != nil {
		return l.group
	}
	return l.l
}

// usable reports whether new executions may be sent to a place. Guarded by Router.mu.
func (l *place) usable() bool {
	return l.partition.state == up && l.executes().health.standing != ejected
}

// Worked reports that an execution under the lease has succeeded.
func (l Lease) Worked() {
	at := l.at()
	if at == nil {
		return
	}
	h := &at.health
	if h.row.Load() != 0 {
		h.row.Store(0)
	}
	h.good.Add(1)
	if h.unsettled.Load() {
		l.r.acquit(at)
	}
}

// acquit ends the probation of a place.
func (r *Router) acquit(l *place) {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	if l.health.standing == onProbation {
		r.stand(l, healthy, &n)
	}
}

// Blame is whose fault a failed execution may be, as far as is known.
type Blame uint8

const (
	// OfPlace: the place may be at fault, or the request.
	OfPlace Blame = iota
	// OfPlaceForGood: every further execution on the place fails, too. It is ejected at once.
	OfPlaceForGood
	// OfOneOfSeveral: one of several requests may have caused the failure. It counts once it is confirmed.
	OfOneOfSeveral
	// OfRequest: it is known to be the fault of the model's requests. It counts only in the rate of the place against that of the model's others.
	OfRequest
)

// Fault is a fault that was reported for a place. The zero Fault is none.
type Fault struct {
	r       *Router
	l       *place
	text    string
	counted bool
	// Row is how many executions on the place have failed without one that succeeded in between, this one included unless it is OfRequest.
	Row int
	// Ejected: nothing runs on the place for now. Gone: the table in force does not have it any more.
	Ejected, Gone bool
}

// Faulted records that an execution under the lease has failed with cause, and ejects the place if its failures ask for that. The Fault says how many executions failed in a row
// there, and whether the place is ejected. It is zero if the lease has no place any more.
func (l Lease) Faulted(cause error, of Blame) Fault {
	at := l.at()
	if at == nil {
		return Fault{}
	}
	f := Fault{r: l.r, l: at, text: forward.Status(cause).Message()}
	row := int32(0) // as it is judged
	switch of {
	case OfOneOfSeveral:
		f.Row = int(at.health.row.Load()) + 1
		return f
	case OfRequest:
		f.Row = int(at.health.row.Load())
	default:
		row = at.health.row.Add(1)
		if of == OfPlaceForGood && row < patience {
			row = patience
			at.health.row.Store(row)
		}
		f.Row, f.counted = int(row), true
	}
	f.Ejected, f.Gone = l.r.count(at, row, f.text)
	return f
}

// Absent reports that the server of the lease does not have the model.
func (l Lease) Absent(cause error) {
	at := l.at()
	if at == nil {
		return
	}
	var n notices
	l.r.mu.Lock()
	defer l.r.unlock(&n)
	if at.health.standing != ejected && l.r.ejectable(at) {
		l.r.eject(at, absencePause, forward.Status(cause).Message(), &n)
		at.health.absent = true
	}
}

// count counts a failed execution on a place, and ejects the place if that is due. It returns whether the place is ejected, and whether the table in
// force does not have it any more.
func (r *Router) count(at *place, row int32, cause string) (isEjected, gone bool) {
	at.health.bad.Add(1)
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	r.convict(at, row, cause, &n)
	return at.health.standing == ejected, !at.current
}

// Confirm counts a fault that was suspected: all requests of the execution have succeeded elsewhere.
func (f Fault) Confirm() {
	if f.l != nil && !f.counted {
		f.r.count(f.l, f.l.health.row.Add(1), f.text)
	}
}

// Excuse takes a fault back: the request has failed on another place as well.
func (f Fault) Excuse() {
	if f.l == nil || !f.counted {
		return
	}
	h := &f.l.health
	for {
		row := h.row.Load()
		if row <= 0 || h.row.CompareAndSwap(row, row-1) {
			break
		}
	}
	for {
		bad := h.bad.Load()
		if bad == 0 || h.bad.CompareAndSwap(bad, bad-1) {
			break
		}
	}
	if !h.unsettled.Load() {
		return
	}
	var n notices
	f.r.mu.Lock()
	defer f.r.unlock(&n)
	if h.standing != healthy && h.row.Load() < patience {
		h.excused = true
		f.r.stand(f.l, healthy, &n)
	}
}

// On reports whether a fault was on the place of a lease.
func (f Fault) On(l Lease) bool { return f.l != nil && f.l == l.at() }

// OfGroup reports whether a fault was on a place of a merge group.
func (f Fault) OfGroup() bool { return f.l != nil && f.l.merges }

// convict ejects a place if that is due. Guarded by mu.
func (r *Router) convict(l *place, row int32, cause string, n *notices) {
	h := &l.health
	if h.standing == ejected || l.partition.state != up {
		return
	}
	if row < patience && (h.standing != onProbation || row == 0) && !r.failsMore(l) {
		return
	}
	r.suspend(l, cause, n)
}

// failsMore reports whether the executions of a place fail far more often than those of the model's other places. Guarded by mu.
func (r *Router) failsMore(l *place) bool {
	m, now := r.models[l.model], r.o.Clock.Now()
	if m == nil {
		return false
	}
	if h := &l.health; now.Sub(h.window) > rateWindow {
		for _, o := range m.places {
			of := &o.executes().health
			of.good.Store(0)
			of.bad.Store(0)
			of.window = now
		}
		h.bad.Store(1) // the fault that is being judged
		h.window = now
	}
	good, bad := l.health.good.Load(), l.health.bad.Load()
	if good+bad < leastExecutions || bad < good {
		return false
	}
	var othersGood, othersBad uint32
	for _, o := range m.places {
		if o != l && o.partition.state == up {
			othersGood += o.executes().health.good.Load()
			othersBad += o.executes().health.bad.Load()
		}
	}
	others := othersGood + othersBad
	return others > 0 && 2*uint64(othersBad)*uint64(good+bad) <= uint64(bad)*uint64(others)
}

// ejectable reports whether a place may be ejected: one of the table in force that is not the last usable one of its model, or a merge group's.
// Guarded by mu.
func (r *Router) ejectable(l *place) bool {
	m := r.models[l.model]
	return m != nil && l.current && (l.merges || m.usableBeside(l))
}

// suspend ejects a place whose executions fail, if that may be, for a time that grows. Guarded by mu.
func (r *Router) suspend(l *place, cause string, n *notices) {
	if !r.ejectable(l) {
		return
	}
	h := &l.health
	if period := 2 * h.period; period > 0 && r.o.Clock.Now().Sub(h.until) < h.period {
		h.period = min(period, lastEjection)
	} else {
		h.period = firstEjection
	}
	r.eject(l, h.period, cause, n)
	period := h.period
	n.log(func() {
		r.o.Logger.Warn("a place is ejected: its executions fail", "model", l.model, "partition", l.partition.ID(), "for", period, "error", cause)
	})
}

// eject ejects a place for a time. Guarded by mu.
func (r *Router) eject(l *place, period time.Duration, cause string, n *notices) {
	h := &l.health
	h.until, h.cause, h.absent, h.excused = r.o.Clock.Now().Add(period), cause, false, false
	r.stand(l, ejected, n)
	h.end = r.o.Clock.After(period, func() { r.parole(l) })
}

// usableBeside reports whether a model has a usable place besides one. Guarded by Router.mu.
func (m *model) usableBeside(l *place) bool {
	for _, o := range m.places {
		if o != l && o.usable() {
			return true
		}
	}
	return false
}

// parole ends an ejection.
func (r *Router) parole(l *place) {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	switch {
	case l.health.standing != ejected || !l.current || r.closed:
	case l.health.absent:
		r.stand(l, healthy, &n)
	default:
		r.stand(l, onProbation, &n)
	}
}

// stand sets the standing of a place. Guarded by mu.
func (r *Router) stand(l *place, to standing, n *notices) {
	h := &l.health
	if h.standing == to {
		return
	}
	if h.end != nil {
		h.end.Stop()
		h.end = nil
	}
	switch {
	case l.partition.places[l.model] != l: // forget has counted it out
	case h.standing == healthy:
		l.partition.unsettled++
	case to == healthy:
		l.partition.unsettled--
	}
	h.standing, h.since = to, r.o.Clock.Now()
	h.unsettled.Store(to != healthy)
	if to != ejected {
		h.row.Store(0)
		h.good.Store(0)
		h.bad.Store(0)
		h.window = h.since
	}
	if to == healthy {
		h.cause = ""
	}
	n.places = append(n.places, l)
	if m := r.models[l.model]; m != nil && l.merges {
		if to == ejected {
			m.why = l.partition.ID() + ": " + h.cause
		}
		r.judgeOutage(m, n)
	}
	for _, m := range r.models {
		for _, o := range m.places {
			if o == l || o.group == l {
				m.wake()
			}
		}
	}
}

// keepLast puts the ejected places of a model that is no merge group on probation if it has no usable place besides them. Guarded by mu.
func (r *Router) keepLast(m *model, n *notices) {
	if m.usableBeside(nil) {
		return
	}
	for _, l := range m.places {
		if l.partition.state == up && l.health.standing == ejected && !l.merges {
			r.stand(l, onProbation, n)
		}
	}
}

// forgive makes all places of a partition healthy: another server has come in its place. Guarded by mu.
func (r *Router) forgive(p *Partition, n *notices) {
	for _, l := range p.places {
		if l.health.standing != healthy {
			r.stand(l, healthy, n)
		}
		l.health.row.Store(0)
		l.health.period = 0
	}
}

// Hung reports that an execution on a partition does not end. The partition's connections are replaced, so that the calls under way fail and are retried
// elsewhere, whatever its state. If it is in use, it is lost then: see Lost. Its places are ejected, as far as their models have others.
func (r *Router) Hung(p *Partition, cause error) {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	if p.state == closed || r.closed {
		return
	}
	for _, l := range p.places { // not of a server that its driver knows to be down: the next one has done nothing
		if m := r.models[l.model]; p.state != down && l.current && l.health.standing != ejected && m != nil && m.usableBeside(l) {
			r.suspend(l, cause.Error(), &n)
		}
	}
	if p.state == up {
		r.lose(p, cause, &n)
	}
	r.hangUp(p, &n)
}

// Unsettled lists the models whose places on a partition are ejected, and those on probation.
func (r *Router) Unsettled(p *Partition) (out, probed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.unsettled == 0 {
		return nil, nil
	}
	for name, l := range p.places {
		switch l.executes().health.standing {
		case ejected:
			out = append(out, name)
		case onProbation:
			probed = append(probed, name)
		}
	}
	return out, probed
}

// Unhealthy lists the places of the table in force that are ejected or on probation.
func (r *Router) Unhealthy() (all []PlaceHealth) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.order {
		for _, l := range p.places {
			if l.current && l.health.standing != healthy && !l.health.absent {
				all = append(all, l.report())
			}
		}
	}
	return all
}

// report describes the health of a place. Guarded by Router.mu.
func (l *place) report() PlaceHealth {
	h := &l.health
	return PlaceHealth{
		Model: l.model, Partition: l.partition.ID(), Ejected: h.standing == ejected, Since: h.since, Until: h.until, Cause: h.cause,
		Group: l.merges, Excused: h.standing == healthy && h.excused, Absent: h.absent,
	}
}

// Other reports whether a model has a usable place on another partition than p.
func (r *Router) Other(p *Partition, model string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil {
		return false
	}
	for _, l := range m.places {
		if l.partition != p && l.usable() {
			return true
		}
	}
	return false
}
