// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// lost deals with a partition that went away under a batch: it is marked down,
// and calls that have no answer go back to the queue, once.
func (d *Dispatcher) lost(b *run, calls []*call, cause error) {
	type failed struct {
		c *call
		a answer
	}
	var given []failed
	p := b.place.partition
	d.mu.Lock()
	func() {
		defer d.unlock()
		if d.broken.Load() || d.closed {
			for _, c := range calls {
				given = append(given, failed{c, b.answer(c, nil, lostStatus(p, cause))})
			}
			return
		}
		now := d.now()
		d.markDown(now, p, cause.Error())
		d.sched.Complete(now, p.id)
		d.sched.Reconfigure(now, func() {
			for _, c := range calls {
				switch {
				case c.state.Load() != waiting: // its caller has gone, or has the answer
				case c.retried:
					given = append(given, failed{c, b.answer(c, nil, lostStatus(p, cause))})
				default:
					c.retried = true
					c.running = false
					c.queued.Avoid = p.id
					d.sched.Requeue(now, c.model.id, &c.queued)
				}
			}
		})
	}()
	for _, f := range given {
		d.answer(f.c, f.a)
	}
	d.o.Logger.Warn("a partition was lost under a batch", "partition", p.spec.ID, "model", b.model.name, "requests", len(calls), "error", cause)
}

func lostStatus(p *partition, cause error) error {
	return status.Errorf(codes.Unavailable, "partition %s was lost: %v", p.spec.ID, status.Convert(cause).Message())
}

// markDown takes a partition that the request path saw fail out of use, until
// the driver says that it is up or it answers for all its models again. Guarded
// by mu.
func (d *Dispatcher) markDown(now queue.Time, p *partition, why string) {
	if !p.up.Load() || p.removed {
		return
	}
	d.setDown(now, p, why, false)
	d.checkOutages()
	if !p.probing && !d.closed {
		p.probing = true
		d.tasks.Add(1)
		go d.probe(p)
	}
}

func (d *Dispatcher) setDown(now queue.Time, p *partition, why string, byOrder bool) {
	p.up.Store(false)
	p.reason = why
	p.byOrder = byOrder
	if p.memory != nil {
		p.memory.Discard()
	}
	for _, m := range d.models {
		if m.last != nil && m.serves(p) {
			m.why = p.spec.ID + ": " + why
		}
	}
	if err := d.sched.SetUp(now, p.id, false); err != nil {
		d.o.Logger.Error("marking a partition down", "partition", p.spec.ID, "error", err)
	}
}

func (d *Dispatcher) setUp(now queue.Time, p *partition) {
	p.up.Store(true)
	p.reason, p.byOrder = "", false
	p.conn.Reconnect()
	if err := d.sched.SetUp(now, p.id, true); err != nil {
		d.o.Logger.Error("marking a partition up", "partition", p.spec.ID, "error", err)
	}
}

func (m *model) serves(p *partition) bool {
	for _, l := range m.last.places {
		if l.partition == p {
			return true
		}
	}
	return false
}

// SetPartitionState tells that a partition's process is up with its models
// loaded, or is not, and why. A partition that was ordered down stays down until
// it is ordered up. What is said about a partition before a table names it is
// remembered.
func (d *Dispatcher) SetPartitionState(id string, up bool, reason string) {
	d.mu.Lock()
	defer d.unlock()
	if up {
		delete(d.down, id)
	} else {
		d.down[id] = reason
	}
	p := d.partitions[id]
	if p == nil || d.broken.Load() || d.closed {
		return
	}
	if up {
		d.setUp(d.now(), p)
	} else {
		d.setDown(d.now(), p, reason, true)
		// A server that hangs keeps its connections open: what waits for its answers
		// goes elsewhere now.
		d.tasks.Add(1)
		go func() {
			defer d.tasks.Done()
			if err := p.conn.Drop(); err != nil {
				d.o.Logger.Debug("dropping the connections to a partition that is down", "partition", p.spec.ID, "error", err)
			}
		}()
	}
	d.checkOutages()
}

// Probing intervals of a partition that was lost.
const (
	firstProbe = 20 * time.Millisecond
	lastProbe  = time.Second
)

// probe asks a lost partition until it has all its models ready, it was ordered
// down, or it is out of the table.
func (d *Dispatcher) probe(p *partition) {
	defer d.tasks.Done()
	for wait := firstProbe; ; wait = min(2*wait, lastProbe) {
		rung := make(chan struct{})
		timer := d.clock.After(wait, func() { close(rung) })
		select {
		case <-rung:
		case <-d.background.Done():
			timer.Stop()
		}
		names, ended := d.probed(p)
		if ended {
			return
		}
		if d.ready(p, names, wait) && d.probeSucceeded(p) {
			return
		}
	}
}

// probed returns what the partition should serve, or that the probe is over.
func (d *Dispatcher) probed(p *partition) (names []string, ended bool) {
	d.mu.Lock()
	defer d.unlock()
	if d.closed || p.up.Load() || p.byOrder || p.retired.Load() {
		p.probing = false
		return nil, true
	}
	for name, m := range d.models {
		if m.serves(p) {
			names = append(names, name)
		}
	}
	return names, false
}

func (d *Dispatcher) ready(p *partition, models []string, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(d.background, max(patience, 100*time.Millisecond))
	defer cancel()
	p.conn.Reconnect()
	client := tritonpb.NewGRPCInferenceServiceClient(p.conn)
	if live, err := client.ServerLive(ctx, &tritonpb.ServerLiveRequest{}, grpc.WaitForReady(true)); err != nil || !live.GetLive() {
		return false
	}
	for _, name := range models {
		if r, err := client.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: name}); err != nil || !r.GetReady() {
			return false
		}
	}
	return true
}

func (d *Dispatcher) probeSucceeded(p *partition) bool {
	d.mu.Lock()
	defer d.unlock()
	if d.closed || p.byOrder || p.retired.Load() || d.broken.Load() {
		return false // the next round ends the probe
	}
	p.probing = false
	if !p.up.Load() {
		d.setUp(d.now(), p)
		d.checkOutages()
		d.o.Logger.Info("a lost partition answers again", "partition", p.spec.ID)
	}
	return true
}
