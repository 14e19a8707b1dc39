// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
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

// watch looks for executions that hang, from time to time while there are some. Of several on one partition one is enough: the partition is lost with it.
type watch struct {
	d *Dispatcher
	// waits: a look is to come. So a batch that begins costs no lock.
	waits atomic.Bool

	mu      sync.Mutex            // guards what follows; the last lock
	outside map[*attempt]struct{} // attempts outside the queue
	next    clock.Timer
	closed  bool
}

// soon sets the timer of the next look, unless it runs.
func (w *watch) soon() {
	if w.d.o.HangFloor <= 0 || w.waits.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && !w.waits.Swap(true) {
		w.next = w.d.clock.After(min(watchInterval, w.d.o.HangFloor/4), w.look)
	}
}

// begin has an attempt outside the queue watched until end.
func (w *watch) begin(a *attempt) {
	if w.d.o.HangFloor <= 0 {
		return
	}
	w.mu.Lock()
	w.outside[a] = struct{}{}
	w.mu.Unlock()
	w.soon()
}

// end ends the watch of an attempt outside the queue.
func (w *watch) end(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.outside, a)
}

// look looks at all executions.
func (w *watch) look() {
	w.waits.Store(false) // what begins from now on sets the timer anew
	found := make(map[*router.Partition]error)
	busy := w.d.queues.hanging(queue.Time(w.d.o.HangFloor), found)
	now := w.d.clock.Now()
	w.mu.Lock()
	for a := range w.outside {
		if ran := now.Sub(a.started); ran > hangFactor*w.d.o.HangFloor {
			found[a.partition] = unpredicted(a, ran)
			delete(w.outside, a)
		}
	}
	busy = busy || len(w.outside) > 0
	w.mu.Unlock()
	if busy {
		w.soon()
	}
	for p, cause := range found {
		w.d.hung(p, cause)
	}
}

// close ends the looks.
func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed = true; w.next != nil {
		w.next.Stop()
	}
}

func unpredicted(a *attempt, ran time.Duration) error {
	return fmt.Errorf("an execution of model %s has run for %v, and nothing is known of how long it takes", a.model.name, ran.Round(time.Millisecond))
}

// hung gives up a partition on which an execution hangs. The server of one that is not in the table any more ends without being started again: another may
// have its name.
func (d *Dispatcher) hung(p *router.Partition, cause error) {
	d.o.Logger.Error("a partition hangs", "partition", p.ID(), "error", cause)
	retired := d.router.Retired(p)
	d.router.Hung(p, cause)
	if !retired {
		d.o.Hung(p.ID(), cause)
	}
}

// hanging adds the partitions on which executions of the queue hang to found, with why, each execution once. It reports whether anything is executed.
func (q *queues) hanging(floor queue.Time, found map[*router.Partition]error) (busy bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for _, p := range q.numbered {
		a := p.running
		if a == nil {
			continue
		}
		busy = true
		ran, predicted := now-a.decided, a.finish-a.decided
		switch known := predicted > 0; {
		case a.hung || a.kept || ran <= max(floor, hangFactor*cmp.Or(max(0, predicted), floor)):
		case known:
			a.hung = true
			found[a.partition] = fmt.Errorf("an execution of model %s has run for %v, %v were predicted", a.model.name, ran.Duration().Round(time.Millisecond), predicted.Duration().Round(time.Millisecond))
		default:
			a.hung = true
			found[a.partition] = unpredicted(a, ran.Duration())
		}
	}
	return busy
}
