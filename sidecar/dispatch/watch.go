// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// A server may hang with its GPU at full load and its process alive. Every execution on it would wait for ever. So executions are looked at from time
// to time. One that takes hangFactor times as long as predicted, and at least Options.HangFloor, hangs: its partition is lost, its requests are
// executed elsewhere as those of any lost server, and the server's owner is called to start it again.
//
// Of a model without a profile, and of a request outside the queue, which shares its server with others, nothing is predicted: HangFloor is taken for
// the prediction. Streams and what is proxied (generate) are not watched: how long these take depends on what they ask for.
const hangFactor = 20

// watchInterval is how often executions are looked at, where the floor is not shorter.
const watchInterval = time.Second

// watch looks for executions of the queue that hang. It is called from time to time while there are executions.
func (d *Dispatcher) watch() {
	for _, a := range d.queues.hanging(queue.Time(d.o.HangFloor)) {
		ran := (d.queues.now() - a.decided).Duration()
		if predicted := (a.finish - a.decided).Duration(); predicted > 0 {
			d.hung(a, fmt.Errorf("an execution of model %s has run for %v, %v were predicted", a.model.name, ran.Round(time.Millisecond), predicted.Round(time.Millisecond)))
		} else {
			d.hung(a, unpredicted(a, ran))
		}
	}
}

func unpredicted(a *attempt, ran time.Duration) error {
	return fmt.Errorf("an execution of model %s has run for %v, and nothing is known of how long it takes", a.model.name, ran.Round(time.Millisecond))
}

// hung gives up the partition of an attempt that hangs. The server of one that is not in the table any more ends without being started again: another may have
// its name.
func (d *Dispatcher) hung(a *attempt, cause error) {
	d.o.Logger.Error("a partition hangs", "partition", a.partition.ID(), "model", a.model.name, "error", cause)
	retired := d.router.Retired(a.partition)
	d.router.Hung(a.partition, cause)
	if !retired {
		d.o.Hung(a.partition.ID(), cause)
	}
}

// passing are the attempts outside the queue that are under way, for the watch.
type passing struct {
	mu  sync.Mutex
	all map[*attempt]struct{}
	// next is the timer of the next look; nil: there is none.
	next   clock.Timer
	closed bool
}

// watchOutside has an attempt outside the queue watched until passing.ended.
func (d *Dispatcher) watchOutside(a *attempt) {
	if d.o.HangFloor <= 0 {
		return
	}
	w := &d.passing
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[*attempt]struct{})
	}
	w.all[a] = struct{}{}
	d.watchPassingSoon()
}

// ended ends the watch of an attempt.
func (w *passing) ended(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, a)
}

// watchPassingSoon sets the timer of the next look, unless it runs. Guarded by passing.mu.
func (d *Dispatcher) watchPassingSoon() {
	if w := &d.passing; w.next == nil && !w.closed {
		w.next = d.clock.After(min(watchInterval, d.o.HangFloor/4), d.watchPassing)
	}
}

// watchPassing looks for attempts outside the queue that hang. One of a partition is enough: the partition is lost with it.
func (d *Dispatcher) watchPassing() {
	w := &d.passing
	found := make(map[*router.Partition]*attempt)
	now := d.clock.Now()
	w.mu.Lock()
	for a := range w.all {
		if now.Sub(a.started) > hangFactor*d.o.HangFloor {
			found[a.partition] = a
			delete(w.all, a)
		}
	}
	if w.next = nil; len(w.all) > 0 {
		d.watchPassingSoon()
	}
	w.mu.Unlock()
	for _, a := range found {
		d.hung(a, unpredicted(a, now.Sub(a.started)))
	}
}

// stop ends the looks.
func (w *passing) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed = true; w.next != nil {
		w.next.Stop()
	}
}

// hanging lists the attempts that hang, each once, and one of each partition.
func (q *queues) hanging(floor queue.Time) (all []*attempt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	busy := false
	for _, p := range q.numbered {
		a := p.running
		if a == nil {
			continue
		}
		busy = true
		predicted := a.finish - a.decided
		if predicted <= 0 {
			predicted = floor
		}
		if !a.hung && now-a.decided > max(floor, hangFactor*predicted) {
			a.hung = true
			if !slices.ContainsFunc(all, func(o *attempt) bool { return o.partition == a.partition }) { // the partition is lost with it
				all = append(all, a)
			}
		}
	}
	if q.watched = nil; busy {
		q.watchSoon()
	}
	return all
}

// watchSoon sets the timer of the next look, unless it runs. Guarded by mu.
func (q *queues) watchSoon() {
	if q.watched == nil && q.watch != nil && !q.closed {
		q.watched = q.clock.After(q.watchAfter, q.watch)
	}
}
