// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// A server may hang with its GPU at full load and its process alive. Every batch on it would wait for ever. So the executions of the queue are looked
// at from time to time. One that takes hangFactor times as long as predicted, and at least Options.HangFloor, hangs: its partition is lost, its
// requests are executed elsewhere as those of any lost server, and the server's owner is called to start it again. Requests outside the queue have no
// prediction, and are not watched.
const hangFactor = 20

// watchInterval is how often executions are looked at, where the floor is not shorter.
const watchInterval = time.Second

// watch looks for executions that hang. It is called from time to time while there are executions.
func (d *Dispatcher) watch() {
	for _, a := range d.queues.hanging(queue.Time(d.o.HangFloor)) {
		cause := fmt.Errorf("an execution of model %s has run for %v, %v were predicted", a.model.name,
			(d.queues.now() - a.decided).Duration().Round(time.Millisecond), (a.finish - a.decided).Duration().Round(time.Millisecond))
		d.o.Logger.Error("a partition hangs", "partition", a.process.ID(), "model", a.model.name, "error", cause)
		d.router.Hung(a.process, cause)
		d.o.Hung(a.process.ID(), cause)
	}
}

// hanging lists the attempts that hang, each once.
func (q *queues) hanging(floor queue.Time) (all []*attempt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	busy := false
	for _, p := range q.partitions {
		a := p.running
		if a == nil {
			continue
		}
		busy = true
		if predicted := a.finish - a.decided; !a.hung && predicted > 0 && now-a.decided > max(floor, hangFactor*predicted) {
			a.hung = true
			all = append(all, a)
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
