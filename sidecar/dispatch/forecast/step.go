// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Pace is how long something takes, or may take, at present, such as a model's executions for the steps of DAGs: a mean over the last. The zero value knows
// none.
type Pace struct{ mean float64 } // nanoseconds; 0: there was none

// paceWeight is the part of the mean that the last makes.
const paceWeight = 1. / 32

// Add counts one more.
func (p *Pace) Add(took time.Duration) {
	if p.mean == 0 {
		p.mean = float64(took)
		return
	}
	p.mean += (float64(took) - p.mean) * paceWeight
}

// Known reports whether there is a mean.
func (p *Pace) Known() bool { return p.mean > 0 }

// Or is the mean, or what is known before there is one.
func (p *Pace) Or(known time.Duration) time.Duration {
	if p.mean == 0 {
		return known
	}
	return time.Duration(p.mean)
}

// Lately is a Pace of what happens now: when nothing was counted for a while, none is known. For what steps take, requests are dropped at the steps before them, so
// that a pace which a single execution that was held up has set could keep all others from showing that it is over.
type Lately struct {
	pace Pace
	last queue.Time // when the last was counted
}

// Add counts one more.
func (l *Lately) Add(took time.Duration, now queue.Time) {
	if now > l.last+memory {
		l.pace = Pace{}
	}
	l.pace.Add(took)
	l.last = now
}

// Or is the mean, or what is known where there was nothing lately.
func (l *Lately) Or(known time.Duration, now queue.Time) time.Duration {
	if now > l.last+memory {
		return known
	}
	return l.pace.Or(known)
}

// memory is how long what was counted last is known.
const memory = queue.Time(5 * time.Second)

// Losses is the part of a DAG's requests that is lost at present: dropped at a step that comes after others, so that what these executed was in vain. Of those
// that count, each was lost or has come to its end. The zero value knows of none that was lost.
type Losses struct {
	part float64
	last queue.Time // when the last one was lost
}

// lossWeight is the part of the mean that the last request makes.
const lossWeight = 1. / 256

// Add counts one more request.
func (l *Losses) Add(lost bool, now queue.Time) {
	*l = l.At(now)
	last := 0.
	if lost {
		last, l.last = 1, now
	}
	l.part += (last - l.part) * lossWeight
}

// At is what there is of the losses at a later moment: nothing once none was lost for a while. What is dropped at its first step does not count: where nothing comes
// further, nothing else would show that the load which lost them is over.
func (l Losses) At(now queue.Time) Losses {
	if now > l.last+memory {
		l.part = 0
	}
	return l
}

// A step leaves forOthers of the time to spare to those that follow it, for their waits, and where more than lossesFrom of all requests are lost forLosses times
// the rest of them more. All are chosen by simulations of drawn DAGs (`make bench BENCH=pipelines`); what steps wait at present says less, because a step that has
// time waits for it. Without lossesFrom, a burst that loses some requests would cost some more.
//
// A step keeps leastKept of the time to spare, however little it executes: in less than what Conch itself adds to it (ResponseBudget, Budget) no request would
// pass it.
const (
	forOthers  = 1. / 4
	forLosses  = 3
	lossesFrom = 1. / 10
	leastKept  = 1. / 10
)

// Reserve is how long before the end of the whole a step of a DAG has to be done: what follows it keeps its time, after on the longest path, and a quarter
// of its part of what the SLO leaves beyond the whole longest path. Where more than one request in ten is lost it is more of that part, and all of it from one
// in three on: what cannot be in time is then dropped before it has executed anything. It is zero for a step that nothing follows.
func Reserve(after, whole, slo time.Duration, l Losses) time.Duration {
	if after == 0 {
		return 0
	}
	part := min(1, forOthers+forLosses*max(0, l.part-lossesFrom)) * float64(after) / float64(whole)
	return after + time.Duration(min(part, 1-leastKept)*float64(max(0, slo-whole)))
}
