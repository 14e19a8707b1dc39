// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
)

// state of a partition; see the package's comment.
type state uint8

const (
	up state = iota
	lost
	down
	retired
	closed
)

// Partition is what the router has of a partition: the connection to its Triton
// server, the server's state, and the leases. Where a table changes a partition's
// endpoint, GPU type or share, it is retired, and a fresh Partition takes its name.
type Partition struct {
	spec   atomic.Pointer[PartitionSpec] // under the latest table that named it; its rank may change
	conn   *forward.Conn
	memory *shm.Pool // nil: none is shared with its server

	// Guarded by Router.mu.
	state   state
	reason  string // why it is not up
	probing bool
	found   time.Time // when a probe found it last
	places  map[string]*place
	leases  int
	holds   int       // leases under which nothing executes
	outside int       // leases of calls outside the queue
	begun   uint64    // leases that were ever granted
	serving int       // leases for a model
	since   time.Time // until when such leases are in worked
	// worked is how long it has worked that is not reported to Options.Busy yet: with as many such leases as it runs batches at once all the time, with fewer
	// a part of it.
	worked time.Duration
	drains []*drain // calls that wait until there are no leases
	// unsettled is how many places are ejected or on probation.
	unsettled int
}

// place is a model on a partition.
type place struct {
	partition *Partition
	model     string
	current   bool // the table in force has it
	leases    int
	outside   int // of leases, not taken for the queue
	attached  any
	drains    []*drain // calls that wait until there are no leases
	// member and group are set if the model runs as rows of a merge group: group is that group's place on the partition. Nil: it runs in itself.
	member *batch.Membership
	group  *place
	merges bool // the model is a merge group
	health health
}

// load is how many leases something executes under. Guarded by Router.mu.
func (p *Partition) load() int { return p.leases - p.holds }

// works counts the leases for a model up to now. Guarded by Router.mu.
func (p *Partition) works(now time.Time) {
	if !now.After(p.since) {
		return
	}
	if n := max(1, p.Spec().Executions); p.serving > 0 {
		p.worked += now.Sub(p.since) * time.Duration(min(p.serving, n)) / time.Duration(n)
	}
	p.since = now
}

// idler reports whether a partition has fewer leases than another, for each batch that it runs at once. Guarded by Router.mu.
func (p *Partition) idler(o *Partition) bool {
	return p.load()*max(1, o.Spec().Executions) < o.load()*max(1, p.Spec().Executions)
}

// Spec is the partition under the latest table that named it.
func (p *Partition) Spec() *PartitionSpec { return p.spec.Load() }

// ID is the partition's name.
func (p *Partition) ID() string { return p.spec.Load().ID }

// Conn is the connection to the server. Calls need a lease.
func (p *Partition) Conn() *forward.Conn { return p.conn }

// Memory is the memory that the server shares with Conch, nil for none.
func (p *Partition) Memory() *shm.Pool { return p.memory }

// dial makes a Partition of its specification.
func (r *Router) dial(spec *PartitionSpec) (*Partition, error) {
	o := r.o.Forward
	o.HTTP = spec.Endpoint.HTTP
	conn, err := forward.Dial(spec.Endpoint.GRPC, o)
	if err != nil {
		return nil, err
	}
	p := &Partition{conn: conn, places: make(map[string]*place)}
	p.spec.Store(spec)
	if r.o.SharedMemoryBytes > 0 && shm.SameHost(spec.Endpoint.GRPC) {
		p.memory = shm.New(registrar{tritonpb.NewGRPCInferenceServiceClient(conn)}, shm.Options{Limit: r.o.SharedMemoryBytes, Logger: r.o.Logger})
	}
	return p, nil
}

// close closes the connection and the shared memory of the partition.
func (p *Partition) close() error {
	if p.memory != nil {
		p.memory.Close()
	}
	return p.conn.Close()
}

// same reports whether the partition keeps running under another table.
func (p *Partition) same(spec *PartitionSpec) bool {
	s := p.Spec()
	return s.Endpoint == spec.Endpoint && s.GPUType == spec.GPUType && s.ThreadPercentage == spec.ThreadPercentage
}

// placeOf finds or makes a model's place on a partition. Guarded by mu.
func (r *Router) placeOf(p *Partition, model string) *place {
	l := p.places[model]
	if l == nil {
		l = &place{partition: p, model: model, attached: r.o.Attach(model, p)}
		p.places[model] = l
	}
	return l
}

// forget takes a place that the table does not have, and that nothing uses any more, out of its partition. Guarded by Router.mu.
func (l *place) forget() {
	if l.partition.places[l.model] != l {
		return
	}
	delete(l.partition.places, l.model)
	if l.health.standing != healthy {
		l.partition.unsettled--
	}
}

// Attached lists the values that Options.Attach made for the places of a model in
// the table in force.
func (r *Router) Attached(model string) []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[model]
	if m == nil {
		return nil
	}
	all := make([]any, len(m.places))
	for i, l := range m.places {
		all[i] = l.attached
	}
	return all
}

// AttachedOn is the value that Options.Attach made for a model on a partition; nil if the model is not placed there.
func (r *Router) AttachedOn(p *Partition, model string) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := p.places[model]; l != nil {
		return l.attached
	}
	return nil
}

// set moves a partition of the table in force to another state. Besides it, only
// retire and reap change a state. Guarded by mu.
func (r *Router) set(p *Partition, to state, reason string, n *notices) {
	from := p.state
	p.state, p.reason = to, reason
	switch {
	case p.memory == nil || to == up:
	case to == down:
		n.ended = append(n.ended, p.memory)
	default:
		n.memories = append(n.memories, p.memory)
	}
	for name, l := range p.places {
		m := r.models[name]
		if m == nil || !l.current {
			continue
		}
		if to != up {
			m.why = p.ID() + ": " + reason
		}
		switch {
		case from == up && to != up:
			m.up--
		case from != up && to == up:
			m.up++
			m.wake()
		default:
			continue
		}
		r.judgeOutage(m, n)
		r.keepLast(m, n)
	}
	if to == down {
		r.forgive(p, n)
	}
	if (from == up) != (to == up) {
		n.partitions = append(n.partitions, p)
	}
}

// retire takes a partition out of use that the new table does not have. It is closed
// when its last lease is released. Guarded by mu.
func (r *Router) retire(p *Partition) {
	p.state = retired
	for _, l := range p.places {
		l.current = false
	}
	r.retired = append(r.retired, p)
	r.reap(p)
}

// reap closes a retired partition without leases. Guarded by mu.
func (r *Router) reap(p *Partition) {
	if p.state != retired || p.leases > 0 {
		return
	}
	p.state = closed
	r.retired = slices.DeleteFunc(r.retired, func(o *Partition) bool { return o == p })
	r.tasks.Go(func() {
		if err := p.close(); err != nil {
			r.o.Logger.Debug("closing the connection to a drained partition", "partition", p.ID(), "error", err)
		}
	})
}

// Set is the driver's report that a partition's server is up with its models
// loaded, or is down, and why. A partition that is down stays down until Set reports
// it up. Set does not put a lost partition back to up: the driver may not have
// noticed the failure yet that the request path has seen, and retried requests would
// fail again. The probe puts it back, a second after it answers at the latest. A
// partition that is set down while no table has it starts down if the next table
// has it.
func (r *Router) Set(partition string, isUp bool, reason string) {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	if isUp {
		delete(r.downs, partition)
	} else {
		r.downs[partition] = reason
	}
	p := r.partitions[partition]
	if p == nil || r.closed {
		return
	}
	if isUp {
		if p.state == down {
			p.conn.Reconnect()
			r.set(p, up, "", &n)
		}
		return
	}
	r.set(p, down, reason, &n)
	r.hangUp(p, &n)
}

// hangUp replaces the connections of a partition. A server that hangs keeps its connections open. Closing them fails the calls that wait for its
// answers, so that they are retried elsewhere. Calls of the next server begin on other connections. Guarded by mu.
func (r *Router) hangUp(p *Partition, n *notices) {
	drop, err := p.conn.Replace()
	if err != nil {
		n.log(func() {
			r.o.Logger.Debug("new connections to a partition that is down", "partition", p.ID(), "error", err)
		})
		return
	}
	r.tasks.Go(func() {
		if err := drop(); err != nil {
			r.o.Logger.Debug("closing the connections to a partition that is down", "partition", p.ID(), "error", err)
		}
	})
}

// Lost is the request path's report that the connection to a partition failed under
// a lease. The partition gets no further lease until all its models are ready again.
func (r *Router) Lost(p *Partition, cause error) {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	if p.state == up && !r.closed {
		r.lose(p, cause, &n)
	}
}

// wellAfter is how long a server that a probe has found well is not taken for lost because its HTTP port fails.
const wellAfter = 30 * time.Second

// Unreachable is Lost for a server whose HTTP port could not be reached, or broke off. It reports false, and does nothing, if a probe, which asks the gRPC port,
// has found the server well a moment ago: that port alone fails, and what does not need it goes on.
func (r *Router) Unreachable(p *Partition, cause error) bool {
	var n notices
	r.mu.Lock()
	defer r.unlock(&n)
	switch {
	case p.state != up || r.closed:
	case r.o.Clock.Now().Sub(p.found) < wellAfter:
		return false
	default:
		r.lose(p, cause, &n)
	}
	return true
}

// lose marks a partition as lost and probes it. Guarded by mu.
func (r *Router) lose(p *Partition, cause error, n *notices) {
	r.set(p, lost, cause.Error(), n)
	if !p.probing {
		p.probing = true
		r.tasks.Go(func() { r.probe(p) })
	}
}

// Up reports whether a partition gets leases.
func (r *Router) Up(p *Partition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.state == up
}

// Retired reports whether the table in force no longer has a partition.
func (r *Router) Retired(p *Partition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.state >= retired
}

// PartitionState is what the router knows of a partition.
type PartitionState struct {
	Partition *PartitionSpec
	Up        bool
	// Draining is true if the table in force no longer has it.
	Draining bool
	// Reason is why it is down.
	Reason string
	// Leases counts those that are not released.
	Leases int
	// Conn speaks Triton's gRPC to the partition with generated message types:
	// for tritonpb.NewGRPCInferenceServiceClient.
	Conn grpc.ClientConnInterface
}

// Partitions lists the partitions of the table in force, in its order, and then
// those that drain.
func (r *Router) Partitions() []PartitionState {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []PartitionState
	for _, p := range r.retiredAndNamed() {
		all = append(all, PartitionState{Partition: p.Spec(), Up: p.state == up, Draining: p.state >= retired, Reason: p.reason, Leases: p.leases, Conn: p.conn})
	}
	return all
}
