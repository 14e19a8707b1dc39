// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
)

// Options of New. The zero value is usable.
type Options struct {
	// Clock is clock.System() unless given.
	Clock  clock.Clock
	Logger *slog.Logger
	// OutageWait is how long a request may wait for a model none of whose partitions
	// is up. Zero means 30 seconds.
	OutageWait time.Duration
	// Forward is how partitions are connected to.
	Forward forward.Options
	// SharedMemoryBytes is the most memory that each partition on the same host may
	// share with Conch. Zero means none.
	SharedMemoryBytes int64

	// PartitionChanged is called when a partition has come up or is no longer up.
	// ModelChanged is called when a model's outage was declared or is over. Calls may
	// overtake each other: ask Up and Out for the present state. No lock is held.
	PartitionChanged func(*Partition)
	ModelChanged     func(model string)
	// PlaceChanged is called when a place was ejected, is on probation, or is healthy again. No lock is held. Calls may overtake each other: ask
	// Unsettled for the present state.
	PlaceChanged func(*Partition, PlaceHealth)
	// Busy is called with a span of time as long as a partition has worked, of late: while it had
	// leases for models, and of one that runs several batches at once in part while it had fewer than those. The spans of a partition do not overlap. No lock is held.
	Busy func(partition string, from, to time.Time)
	// Attach makes the caller's value for a model on a partition, which Lease.Attached
	// returns.
	Attach func(model string, p *Partition) any
	// Unknown is the error for a lease on a model that has no route.
	Unknown func(model string) error
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OutageWait <= 0 {
		o.OutageWait = 30 * time.Second
	}
	if o.PartitionChanged == nil {
		o.PartitionChanged = func(*Partition) {}
	}
	if o.ModelChanged == nil {
		o.ModelChanged = func(string) {}
	}
	if o.PlaceChanged == nil {
		o.PlaceChanged = func(*Partition, PlaceHealth) {}
	}
	if o.Busy == nil {
		o.Busy = func(string, time.Time, time.Time) {}
	}
	if o.Unknown == nil {
		o.Unknown = func(model string) error { return new(Table).Unknown(model, "") }
	}
	if o.Attach == nil {
		o.Attach = func(string, *Partition) any { return nil }
	}
	return o
}

// Router owns the partitions. All methods are safe for concurrent use.
type Router struct {
	o          Options
	background context.Context // ends with Close
	cancel     context.CancelFunc
	tasks      sync.WaitGroup

	mu         sync.Mutex            // guards what follows, and the state of partitions, places and models
	models     map[string]*model     // of the table in force
	partitions map[string]*Partition // of the table in force, by name
	order      []*Partition          // those, in the table's order
	retired    []*Partition          // not in the table in force, and leased
	downs      map[string]string     // partitions that their driver has set down, and why
	closed     bool
}

// New makes a router without a table.
func New(o Options) *Router {
	r := &Router{
		o: o.withDefaults(), models: make(map[string]*model), partitions: make(map[string]*Partition), downs: make(map[string]string),
	}
	r.background, r.cancel = context.WithCancel(context.Background())
	return r
}

// model is where one model is served.
type model struct {
	name   string
	spec   *Model   // in the table in force
	places []*place // of the table in force
	up     int      // places whose partition is up
	// changed is closed when calls that wait for a place should try again; nil: no
	// call waits.
	changed chan struct{}
	outage  clock.Timer // runs while no place is up and out is false
	out     bool        // no place was up for Options.OutageWait
	why     string      // the partition that stopped being up last, and why
	homes   homes
}

// wake makes the calls that wait for the model try again. Guarded by Router.mu.
func (m *model) wake() {
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// waking returns the channel that wake closes. Guarded by Router.mu.
func (m *model) waking() <-chan struct{} {
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

func (m *model) outageError() error {
	why := m.why
	switch {
	case len(m.places) == 0:
		why = "the plan in force gives it none"
	case why == "":
		why = "none was yet"
	}
	return status.Errorf(codes.Unavailable, "no partition that serves model '%s' is up: %s", m.name, why)
}

var errClosed = status.Error(codes.Unavailable, "Server is exiting: the request was not served")

// notices are the partitions and models whose callbacks are to be called once the
// lock is released.
type notices struct {
	partitions []*Partition
	models     []string
	places     []*place
	logs       []func()
	memories   []*shm.Pool // of servers that are lost
	ended      []*shm.Pool // of servers that their driver has set down
}

// discard gives up memory of servers that are not up, which unmaps what is not lent.
func (n *notices) discard() {
	for _, m := range n.memories {
		m.Discard()
	}
	for _, m := range n.ended {
		m.Ended()
	}
}

// log has something logged once the lock is released, which the queue's lock may wait for.
func (n *notices) log(what func()) { n.logs = append(n.logs, what) }

// unlock releases the lock, logs, and calls the callbacks for what has changed.
func (r *Router) unlock(n *notices) {
	r.mu.Unlock()
	n.discard()
	for _, log := range n.logs {
		log()
	}
	for _, p := range n.partitions {
		r.o.PartitionChanged(p)
	}
	for _, m := range n.models {
		r.o.ModelChanged(m)
	}
	for _, l := range n.places {
		r.mu.Lock()
		now, p := l.report(), l.partition
		r.mu.Unlock()
		r.o.PlaceChanged(p, now)
	}
}

// Change is a table that is ready to come into force.
type Change struct {
	r     *Router
	table *Table
	fresh map[string]*Partition
	kept  map[string]bool // models
	// changed are the models that are not kept, removed the names of those that the table does not have any more.
	changed []*Model
	removed []string
	// places are those whose health Commit has changed.
	places []*place
}

// Prepare checks a table and connects to the partitions that are new in it. It
// changes nothing: Commit or Discard the change. One change may be open at a time.
func (r *Router) Prepare(t *Table) (*Change, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	c := &Change{r: r, table: t, fresh: make(map[string]*Partition)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("%w %d: the router is closed", ErrTable, t.Revision)
	}
	for _, spec := range t.Partitions {
		if p := r.partitions[spec.ID]; p != nil && p.same(spec) {
			continue
		}
		p, err := r.dial(spec)
		if err != nil {
			c.Discard()
			return nil, fmt.Errorf("%w %d: partition %q: %w", ErrTable, t.Revision, spec.ID, err)
		}
		c.fresh[spec.ID] = p
	}
	c.kept = make(map[string]bool, len(t.Models))
	for name, m := range t.Models {
		kept := r.models[name] != nil && r.models[name].spec == m &&
			!slices.ContainsFunc(m.Places, func(at Place) bool { return c.fresh[at.Partition] != nil })
		if c.kept[name] = kept; !kept {
			c.changed = append(c.changed, m)
		}
	}
	for name := range r.models {
		if t.Models[name] == nil {
			c.removed = append(c.removed, name)
		}
	}
	return c, nil
}

// Kept reports whether a model of the new table is as it was, on the same partitions.
func (c *Change) Kept(model string) bool { return c.kept[model] }

// Partition returns a partition of the new table by its name: one that keeps
// running, or a new one.
func (c *Change) Partition(partition string) *Partition {
	if p := c.fresh[partition]; p != nil {
		return p
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.r.partitions[partition]
}

// Discard closes the connections that Prepare has made.
func (c *Change) Discard() {
	for _, p := range c.fresh {
		_ = p.close() // nothing was sent
	}
}

// Commit brings the table into force: from then on no lease is granted on a place
// that the table does not have. It does not wait for the leases on such places. It
// returns the partitions that it retired. It does not call PartitionChanged and
// ModelChanged: ask Up and Out. Notify calls PlaceChanged.
func (c *Change) Commit() (retired []*Partition) {
	r, t := c.r, c.table
	var n notices
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		c.places = n.places
		n.discard() // of servers that are new, which have none
	}()
	if r.closed {
		c.Discard()
		return nil
	}
	order := make([]*Partition, 0, len(t.Partitions))
	named := make(map[string]*Partition, len(t.Partitions))
	for _, spec := range t.Partitions {
		p := c.fresh[spec.ID]
		if p == nil {
			p = r.partitions[spec.ID]
		}
		p.spec.Store(spec)
		named[spec.ID] = p
		order = append(order, p)
	}
	for id, p := range r.partitions {
		if named[id] != p {
			retired = append(retired, p)
		}
	}
	for _, p := range retired {
		r.retire(p)
	}
	r.partitions, r.order = named, order
	r.occupy(c, &n)
	for id, why := range r.downs {
		if p := named[id]; p == nil {
			delete(r.downs, id)
		} else if p.state != down {
			r.set(p, down, why, &n)
		}
	}
	return retired
}

// Notify calls PlaceChanged for the places whose health Commit has changed. No lock may be held that it takes.
func (c *Change) Notify() {
	if len(c.places) > 0 {
		c.r.mu.Lock()
		c.r.unlock(&notices{places: c.places})
	}
}

// occupy sets the places of the models that a change does not keep. Guarded by mu.
func (r *Router) occupy(c *Change, n *notices) {
	for _, name := range c.removed {
		m := r.models[name]
		delete(r.models, name)
		m.leave(nil)
		m.stopOutage()
		m.wake()
	}
	for _, spec := range c.changed {
		name := spec.Name
		m := r.models[name]
		if m == nil {
			m = &model{name: name}
			r.models[name] = m
		}
		m.spec = spec
		before := m.places
		m.places, m.up = make([]*place, 0, len(spec.Places)), 0
		m.homes.idle = idleTime(spec)
		for _, s := range spec.Places {
			l := r.placeOf(r.partitions[s.Partition], name)
			if !l.current {
				r.stand(l, healthy, n)
			}
			l.current, l.merges = true, spec.Internal
			if l.member, l.group = spec.Membership, nil; spec.Membership != nil {
				l.group = r.placeOf(r.partitions[s.Partition], spec.Membership.Group)
			}
			m.places = append(m.places, l)
			if l.partition.state == up {
				m.up++
			}
		}
		now := m.places
		m.places = before
		m.leave(now)
		m.places = now
		if len(now) == 0 && len(before) > 0 && !spec.OnDemand {
			m.declareOut(n) // the plan has taken it off its last place: nothing is to be waited for
		} else {
			r.judgeOutage(m, n)
		}
		m.wake()
		r.keepLast(m, n)
	}
}

// leave takes a model off its places but those in now. Guarded by Router.mu.
func (m *model) leave(now []*place) {
	for _, l := range m.places {
		if slices.Contains(now, l) {
			continue
		}
		l.current = false
		if l.leases == 0 {
			l.forget()
		}
	}
}

// retiredAndNamed lists the partitions of the table in force and the retired ones.
// Guarded by mu.
func (r *Router) retiredAndNamed() []*Partition { return slices.Concat(r.order, r.retired) }

// failing reports whether a model is a merge group that has no healthy place: its requests do not wait for one longer than for a partition.
func (m *model) failing() bool {
	return m.spec.Internal && !slices.ContainsFunc(m.places, func(l *place) bool { return l.partition.state == up && l.health.standing == healthy })
}

// judgeOutage ends a model's outage and stops its timer if one of its partitions is up and
// it is not failing. Else it starts the timer, unless that runs or the outage is
// declared. Guarded by mu.
func (r *Router) judgeOutage(m *model, n *notices) {
	switch {
	case m.up > 0 && !m.failing():
		m.stopOutage()
		if m.out {
			m.out = false
			n.models = append(n.models, m.name)
		}
	case m.outage == nil && !m.out && !r.closed:
		var timer clock.Timer
		timer = r.o.Clock.After(r.o.OutageWait, func() { r.declareOut(m, &timer) })
		m.outage = timer
	}
}

// stopOutage stops the outage timer of a model. Guarded by Router.mu.
func (m *model) stopOutage() {
	if m.outage != nil {
		m.outage.Stop()
		m.outage = nil
	}
}

// declareOut declares the outage of a model, unless its timer was stopped meanwhile.
func (r *Router) declareOut(m *model, timer *clock.Timer) {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	if m.outage == *timer {
		m.outage = nil
		m.declareOut(&n)
	}
}

// declareOut declares the outage of a model, which ends the waits for it. Guarded by Router.mu.
func (m *model) declareOut(n *notices) {
	m.stopOutage()
	if !m.out {
		m.out = true
		n.models = append(n.models, m.name)
	}
	m.wake()
}

// Out returns the error that requests for a model get while its outage is declared,
// and for every model once the router is closed; nil otherwise.
func (r *Router) Out(model string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := r.models[model]; {
	case r.closed:
		return errClosed
	case m == nil || !m.out:
		return nil
	default:
		return m.outageError()
	}
}

// Close closes all connections. Calls that wait for a partition fail with UNAVAILABLE.
func (r *Router) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.cancel()
	for _, m := range r.models {
		m.stopOutage()
		m.wake()
	}
	all := r.retiredAndNamed()
	r.mu.Unlock()
	closed := make(chan error, len(all))
	for _, p := range all {
		go func() { closed <- p.close() }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-closed)
	}
	r.tasks.Wait()
	return err
}
