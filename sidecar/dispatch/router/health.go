// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/clock"
)

// A server that answers every execution with an error at once is always free, so it would get every request. Each place therefore has a health,
// which the executions on it decide. A place whose executions fail in a row, or far more often than those of the model's other places, is ejected:
// it gets no lease and no batch for a time that doubles with every ejection (outlier ejection, as in Envoy). It is then on probation: its next
// execution decides. The last usable place of a model is never ejected.
//
// Only faults count, for which a request cannot be blamed. What refuses a request says nothing of the place: see forward.Faulted. A fault that the
// request repeats on another place was the request's own, and is excused.

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
)

// standing is the state of a place's health.
type standing uint8

const (
	healthy standing = iota
	// ejected: nothing runs there.
	ejected
	// onProbation: the next execution decides. Requests outside the queue come one at a time.
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
	return l.process.state == up && l.executes().health.standing != ejected
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

// Fault is a fault that was reported for a place. The zero Fault is none.
type Fault struct {
	r       *Router
	l       *place
	text    string
	counted bool
}

// Faulted reports that an execution under the lease has failed, and not by the fault of its request as far as is known. The place is ejected if
// that is due; at once if it is certain that every further execution fails. Row is how many executions on the place have failed without one that
// succeeded in between, this one included.
func (l Lease) Faulted(cause error, certain bool) (f Fault, row int) {
	at := l.at()
	if at == nil {
		return Fault{}, 0
	}
	n := at.health.row.Add(1)
	if certain && n < patience {
		n = patience
		at.health.row.Store(n)
	}
	l.r.counts(at, n, cause.Error())
	return Fault{r: l.r, l: at, text: cause.Error(), counted: true}, int(n)
}

// Suspect is Faulted for an execution of several requests, one of which may have caused the failure: the fault counts once it is confirmed.
func (l Lease) Suspect(cause error) (f Fault, row int) {
	at := l.at()
	if at == nil {
		return Fault{}, 0
	}
	return Fault{r: l.r, l: at, text: cause.Error()}, int(at.health.row.Load()) + 1
}

// FaultedByItself reports that an execution under the lease has failed in a way that is known to be its requests' own. It counts only in the rate of
// the place against that of the model's others.
func (l Lease) FaultedByItself(cause error) (row int) {
	at := l.at()
	if at == nil {
		return 0
	}
	l.r.counts(at, 0, cause.Error())
	return int(at.health.row.Load())
}

// counts counts a failed execution on a place, and ejects the place if that is due.
func (r *Router) counts(at *place, row int32, cause string) {
	at.health.bad.Add(1)
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	r.convict(at, row, cause, &n)
}

// Confirm counts a fault that was suspected: all requests of the execution have succeeded elsewhere.
func (f Fault) Confirm() {
	if f.l != nil && !f.counted {
		f.r.counts(f.l, f.l.health.row.Add(1), f.text)
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
		f.r.stand(f.l, healthy, &n)
	}
}

// On reports whether a fault was on a process.
func (f Fault) On(p *Process) bool { return f.l != nil && f.l.process == p }

// convict ejects a place if that is due. Guarded by mu.
func (r *Router) convict(l *place, row int32, cause string, n *notices) {
	h := &l.health
	if h.standing == ejected || l.process.state != up {
		return
	}
	if row < patience && (h.standing != onProbation || row == 0) && !r.failsMore(l) {
		return
	}
	r.eject(l, cause, n)
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
		if o != l && o.process.state == up {
			othersGood += o.executes().health.good.Load()
			othersBad += o.executes().health.bad.Load()
		}
	}
	others := othersGood + othersBad
	return others > 0 && 2*uint64(othersBad)*uint64(good+bad) <= uint64(bad)*uint64(others)
}

// eject ejects a place, unless it is the last usable one of its model. Guarded by mu.
func (r *Router) eject(l *place, cause string, n *notices) {
	m := r.models[l.model]
	if m == nil || !l.current || !m.usableBeside(l) {
		return
	}
	h, now := &l.health, r.o.Clock.Now()
	if period := 2 * h.period; period > 0 && now.Sub(h.until) < h.period {
		h.period = min(period, lastEjection)
	} else {
		h.period = firstEjection
	}
	h.until, h.cause = now.Add(h.period), cause
	r.stand(l, ejected, n)
	r.o.Logger.Warn("a place is ejected: its executions fail", "model", l.model, "partition", l.process.ID(), "for", h.period, "error", cause)
	h.end = r.o.Clock.After(h.period, func() { r.parole(l) })
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
	if l.health.standing == ejected && !r.closed {
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
	if to == ejected {
		l.process.ejected++
	} else if h.standing == ejected {
		l.process.ejected--
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
	for _, m := range r.models {
		for _, o := range m.places {
			if o == l || o.group == l {
				m.wake()
			}
		}
	}
}

// keepLast puts the ejected places of a model on probation if it has no usable place besides them. Guarded by mu.
func (r *Router) keepLast(m *model, n *notices) {
	if m.usableBeside(nil) {
		return
	}
	for _, l := range m.places {
		if l.process.state == up && l.health.standing == ejected {
			r.stand(l, onProbation, n)
		}
	}
}

// forgive makes all places of a process healthy: another server has come in its place. Guarded by mu.
func (r *Router) forgive(p *Process, n *notices) {
	for _, l := range p.places {
		if l.health.standing != healthy {
			r.stand(l, healthy, n)
		}
		l.health.row.Store(0)
		l.health.period = 0
	}
}

// Hung reports that an execution on a process does not end. Its places are ejected, as far as their models have others, and its connections are
// replaced, so that the calls under way fail and are retried elsewhere. The process is lost then: see Lost.
func (r *Router) Hung(p *Process, cause error) {
	r.mu.Lock()
	var n notices
	if p.state != up || r.closed {
		r.unlock(&n)
		return
	}
	for _, l := range p.places {
		if l.current && l.health.standing != ejected {
			r.eject(l, cause.Error(), &n)
		}
	}
	r.lose(p, cause, &n)
	r.hangUp(p)
	r.unlock(&n)
}

// Ejected lists the models whose places on a process are ejected.
func (r *Router) Ejected(p *Process) (models []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.ejected == 0 {
		return nil
	}
	for name, l := range p.places {
		if l.executes().health.standing == ejected {
			models = append(models, name)
		}
	}
	return models
}

// Unhealthy lists the places of the table in force that are ejected or on probation.
func (r *Router) Unhealthy() (all []PlaceHealth) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.order {
		for _, l := range p.places {
			if l.current && l.health.standing != healthy {
				all = append(all, l.report())
			}
		}
	}
	return all
}

// report describes the health of a place. Guarded by Router.mu.
func (l *place) report() PlaceHealth {
	h := &l.health
	return PlaceHealth{Model: l.model, Partition: l.process.ID(), Ejected: h.standing == ejected, Since: h.since, Until: h.until, Cause: h.cause}
}

// Other reports whether a model has a usable place on another process than p.
func (r *Router) Other(p *Process, model string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil {
		return false
	}
	for _, l := range m.places {
		if l.process != p && l.usable() {
			return true
		}
	}
	return false
}
