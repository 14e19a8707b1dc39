// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Lease is the right to use one partition, for one model or for none. The zero
// Lease is none. Release it once.
type Lease struct {
	r      *Router
	p      *Partition
	l      *place // nil: for no model
	group  *place // of the merge group that the model runs in; nil: it runs in itself
	member *batch.Membership
	use    use
	beside int
}

// use is what a lease is for.
type use uint8

const (
	// forCall: a call outside the queue.
	forCall use = iota
	// forBatch: an execution of the queue.
	forBatch
	// forSteps: nothing executes under it; it keeps the model where it is.
	forSteps
)

// Partition is what the lease is on.
func (l Lease) Partition() *Partition { return l.p }

// Valid reports whether this is a lease.
func (l Lease) Valid() bool { return l.p != nil }

// Attached is what Options.Attach made for the model on the partition; nil without
// a model.
func (l Lease) Attached() any {
	if l.l == nil {
		return nil
	}
	return l.l.attached
}

// Membership describes how the model runs as rows of a merge group on the leased partition; nil: it runs in itself.
func (l Lease) Membership() *batch.Membership { return l.member }

// Hints order the partitions that a lease may be on.
type Hints struct {
	// Avoid is leased only if no other partition of the model is up.
	Avoid *Partition
	// Sequence keeps the requests of a sequence on one partition; nil: no sequence.
	Sequence *Sequence
}

// Acquire leases a partition for a call that runs outside the queue: a partition that
// serves the model, or any partition if the model is empty. It picks the partition of
// the hinted sequence, or else the one with the fewest leases. Errors are gRPC
// status errors in Triton's words. With an error comes a channel if the caller may
// wait for a partition of the model: it is to try again when the channel is closed.
func (r *Router) Acquire(model string, h Hints) (l Lease, wait <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return l, nil, errClosed
	}
	now := r.o.Clock.Now()
	if model == "" {
		p := r.any()
		if p == nil {
			return l, nil, status.Error(codes.Unavailable, "no partition is up")
		}
		return r.lease(p, nil, forCall, now), nil, nil
	}
	m := r.models[model]
	if m == nil {
		return l, nil, r.o.Unknown(model)
	}
	var best *place
	if h.Sequence != nil {
		best = m.homes.find(h.Sequence, now)
	}
	if best == nil {
		if best = m.leastBusy(h.Avoid); best == nil {
			if !m.out {
				wait = m.waking()
			}
			return l, wait, m.outageError()
		}
	}
	if h.Sequence != nil {
		m.homes.put(h.Sequence, best, now)
	}
	return r.lease(best.partition, best, forCall, now), nil, nil
}

// Hold keeps a model where it is, without the use of a partition: an ensemble whose steps are executed one by one, on whichever partitions serve their
// models. While the hold lasts, the server unloads neither the ensemble nor the models that it calls, so that a step can be executed there whose
// model the table has lost meanwhile. There is none while no partition serves the model.
func (r *Router) Hold(model string) (l Lease, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil || r.closed {
		return l, false
	}
	at := m.leastBusy(nil)
	if at == nil {
		return l, false
	}
	return r.lease(at.partition, at, forSteps, time.Time{}), true
}

// any returns the partition with the fewest leases of those that are up. Guarded by mu.
func (r *Router) any() (best *Partition) {
	for _, p := range r.order {
		if p.state == up && (best == nil || p.idler(best)) {
			best = p
		}
	}
	return best
}

// leastBusy returns the place with the fewest leases among the usable ones. The
// partition to avoid is taken only if no other is usable. A place on probation is taken
// while it has no lease, or if there is no other. Guarded by Router.mu.
func (m *model) leastBusy(avoid *Partition) (best *place) {
	var probed *place
	for _, l := range m.places {
		p := l.partition
		if !l.usable() {
			continue
		}
		if at := l.executes(); at.health.standing == onProbation && at.leases > 0 {
			probed = l
			continue
		}
		if best == nil || best.partition == avoid || p.idler(best.partition) && p != avoid {
			best = l
		}
	}
	if best == nil || best.partition == avoid && probed != nil && probed.partition != avoid {
		return cmp.Or(probed, best)
	}
	return best
}

// Take leases the partition that the queue chose for a batch. It fails if the
// partition is not up or no longer serves the model.
func (r *Router) Take(p *Partition, model string) (Lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := p.places[model]
	if l == nil || !l.current || p.state != up || r.closed {
		return Lease{}, fmt.Errorf("partition %s is not up: %s", p.ID(), p.reason)
	}
	return r.lease(p, l, forBatch, r.o.Clock.Now()), nil
}

// lease counts a lease in. Guarded by mu.
func (r *Router) lease(p *Partition, l *place, of use, now time.Time) Lease {
	p.leases++
	lease := Lease{r: r, p: p, l: l, use: of}
	if l != nil {
		l.leases++
		if lease.member, lease.group = l.member, l.group; l.group != nil {
			l.group.leases++
		}
	}
	if of == forSteps {
		p.holds++
		return lease
	}
	p.begun++
	if of == forCall {
		p.outside++
		if l != nil {
			l.outside++
			lease.beside = l.outside
		}
	}
	if l != nil {
		p.works(now)
		p.serving++
	}
	return lease
}

// Release gives the lease back.
func (l Lease) Release() {
	r, p := l.r, l.p
	now := r.o.Clock.Now()
	from := now
	r.mu.Lock()
	p.leases--
	switch l.use {
	case forCall:
		p.outside--
		if l.l != nil {
			l.l.outside--
		}
	case forSteps:
		p.holds--
	}
	if l.l != nil {
		if l.use != forSteps {
			p.works(now)
			p.serving--
			from, p.worked = now.Add(-p.worked), 0
		}
		l.l.left()
		if l.group != nil {
			l.group.left()
		}
	}
	if p.leases == 0 {
		idle(&p.drains)
		r.reap(p)
	}
	r.mu.Unlock()
	if l.l != nil && l.use != forSteps {
		r.o.Busy(p.ID(), from, now)
	}
}

// left counts a lease out. Guarded by Router.mu.
func (l *place) left() {
	if l.leases--; l.leases > 0 {
		return
	}
	idle(&l.drains)
	if !l.current {
		l.forget()
	}
}

// Alone returns 0 if the partition has other leases, holds left out. Otherwise it returns a number
// that is another one once a further lease has been granted on the partition.
func (l Lease) Alone() uint64 {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if l.p.leases-l.p.holds != 1 {
		return 0
	}
	return l.p.begun
}

// Outside returns how many leases on the partition were not taken for the queue.
func (l Lease) Outside() int {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.p.outside
}

// Beside returns how many leases for the model on the partition were not taken for the queue when this one was granted, it among them; 0 for one of the queue.
func (l Lease) Beside() int { return l.beside }

// drain is one call of Drained: it waits until its partitions or places are idle.
type drain struct {
	busy int           // partitions or places that still have leases
	idle chan struct{} // closed when busy is 0
}

// idle takes one partition or place off each drain, closes the drains that have
// none left, and empties the list.
func idle(all *[]*drain) {
	for _, d := range *all {
		if d.busy--; d.busy == 0 {
			close(d.idle)
		}
	}
	*all = nil
}

// Drained returns a channel that is closed when the last lease is released. With a
// model, the leases are those on the model's place in the partition, whether or not
// the table in force has the partition: call it after the Commit that removed the
// place. Without a model, the leases are those on retired partitions of that
// partition: wait for it before stopping one. An unknown partition or place counts
// as idle.
func (r *Router) Drained(partition, model string) <-chan struct{} {
	d := &drain{idle: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.retiredAndNamed() {
		if p.ID() != partition {
			continue
		}
		if l := p.places[model]; l != nil && l.leases > 0 {
			d.busy++
			l.drains = append(l.drains, d)
		} else if model == "" && p.state >= retired && p.leases > 0 {
			d.busy++
			p.drains = append(p.drains, d)
		}
	}
	if d.busy == 0 {
		close(d.idle)
	}
	return d.idle
}
