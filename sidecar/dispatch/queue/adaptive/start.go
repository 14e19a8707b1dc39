// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import (
	"math"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/latency"
)

// StartAt returns the moment from which the batch may start although a further row
// could still join it, as things stand; now or earlier means at once.
func (p *Params) StartAt(now Time, l *Load) Time {
	at := p.hurry(now, l)
	if p.comesInBursts(l) {
		at = max(at, l.Newest+p.silence(l))
	}
	return at
}

// Exec returns the moment from which the batch may start at the latest: when a further
// row could not join it any more (Symphony, Algorithm 1), or a little before it would be
// late.
func (p *Params) Exec(now Time, l *Load) Time {
	if l.Full || l.Deadline == latency.Never {
		return now
	}
	return max(now, p.patience(l))
}

func (p *Params) patience(l *Load) Time {
	return min(l.Frontrun, l.Latest-Time(p.Margin*float64(l.Model.Table.At(l.Rows))))
}

// hurry is StartAt without regard to bursts.
func (p *Params) hurry(now Time, l *Load) Time {
	if p.lowLoad(l) {
		return p.openExecutor(now, l)
	}
	if l.Pool.Usable == 1 || p.worthIt(l) || p.light(l) {
		return now
	}
	reach := float64(l.Model.Table.At(l.Model.Reach))
	left, ebb := l.Pool.Left(now)
	usable := float64(l.Pool.Usable)
	early := p.haste(l) + p.crowd(l)
	if p.Stagger > 0 {
		early += p.Stagger - left/usable
	}
	wait := float64(p.patience(l)-now) - reach*early
	if wait <= 0 {
		return now
	}
	// What is left falls until then, so the moment comes before the wait is over.
	return now + 1 + Time(wait/(1+reach*ebb/usable))
}

// lowLoad reports that there is no queue to shorten: more than the share Idle of the
// executors is free, or, unless requests come in bursts, the models need so few that
// by chance they do not take them all: with Idle at 1/2, s + 2 sqrt(s) + 1 < N, s
// being what all models keep busy.
func (p *Params) lowLoad(l *Load) bool {
	usable, need := float64(l.Pool.Usable), l.Pool.Need
	calm := !p.comesInBursts(l) && need > 0
	return float64(l.Pool.Free) > p.Idle*usable || calm && need+2*math.Sqrt(need)+1 < 2*(1-p.Idle)*usable
}

// openExecutor starts a batch under low load while fewer executors are busy than
// the load needs, and one at least; else it waits as under deferred. So a lone
// request does not wait for others to join, and the load still takes about as few
// executors as it can (Symphony, section 3.5).
func (p *Params) openExecutor(now Time, l *Load) Time {
	if float64(l.Pool.Usable-l.Pool.Free) < max(1, l.Pool.Need) || p.prompt(l) {
		return now
	}
	return latency.Never
}

// prompt reports whether a single request of some other model takes longer than this model
// can wait. A batch that waits then for others to join, or so that an executor may stay
// idle, may find all executors taken.
func (p *Params) prompt(l *Load) bool {
	return p.Keep > 0 && l.Model.Slack < l.Pool.Kept.longest
}

// worthIt reports whether the batch runs nearly as efficiently as the largest within reach.
func (p *Params) worthIt(l *Load) bool {
	return p.WorthSlack > 0 && p.WorthMost > 0 && l.Rows >= l.Model.Worth
}

// Worth is the smallest batch that runs nearly as efficiently as the largest within
// reach, the more executors there are to spare the less nearly. While the reach is
// a guess there is no reason to stop waiting.
func (p *Params) Worth(l *Load) int {
	m := l.Model
	if !m.Known {
		return m.MaxBatch
	}
	return m.Table.Nearly(m.Reach, max(0, min(p.WorthMost, p.WorthSlack*(1/l.Pool.Load()-1))))
}

// light reports that the model has little to stagger: staggering is between its own
// batches. A model with less than about one executor to itself competes with the
// others for every executor that becomes free; its batches grow while it waits for
// its turn, and if it waited on purpose, its turn would come too late. Where the
// models ask for more executors than there are, each counts with its share.
func (p *Params) light(l *Load) bool {
	need := l.Model.Need * min(1, float64(l.Pool.Usable)/l.Pool.Need)
	return need > 0 && need < p.Light
}

// crowd is the share of the load that is of models which keep less than one executor
// busy. They do not wait, so that executors are taken whenever they are free, and
// a batch that waits until the last moment finds none.
func (p *Params) crowd(l *Load) float64 {
	if l.Pool.Need == 0 {
		return 0
	}
	return p.Crowd * l.Pool.Crowd / l.Pool.Need
}

// haste is for long bursts. After a burst there is silence: few requests come that could
// join the batch, and the time that a small batch wastes is not needed.
func (p *Params) haste(l *Load) float64 { return p.Haste * max(0, l.Model.Dispersion-p.Torrent) }

func (p *Params) comesInBursts(l *Load) bool { return l.Model.Dispersion > p.Bursty }

// silence is how long no request must have come before a batch of a burst starts early:
// more requests follow the first of a burst, which must not take an executor from them.
// The fewer than Scarce executors there are, the longer it takes until another is free.
func (p *Params) silence(l *Load) Time {
	m, scarce := l.Model, 1.0
	if p.Scarce > 0 {
		scarce = min(1, float64(l.Pool.Usable)/p.Scarce)
	}
	return Time(p.Quiet * (1 - p.Bursty/m.Dispersion*scarce) * m.Saved * m.Saved * float64(m.Table.At(1)))
}

// Unblocked returns the moment from which the batch may start without blocking models
// that could not wait until it ends; now or earlier means at once.
//
// A batch blocks a model whose slack is less than the time that the batch has left.
// As many batches as leave the executors that the model needs may do so at a time,
// and one in any case. Only a model with less slack than the batch's own counts:
// equal models do not wait for one another.
//
// Under a load below Calm no more of them start before their time than the models need
// whose batches block: few large executions leave more to the others than many small.
// Where they block severely (see shielded) that holds at any load, and a batch which is
// smaller than the rate allows does not start before its time at all. One without a
// deadline has no such time, and would never start.
//
// A model that can be blocked itself (see prompt) is only held back where it blocks
// severely, and not in bursts.
func (p *Params) Unblocked(now Time, l *Load) Time {
	k := &l.Pool.Kept
	if !p.Blocks(l) || p.lifted(l) {
		return now
	}
	bound := min(l.Model.Table.At(l.Rows), l.Model.Slack)
	at := lapse(now, l.Pool.Running.ends, k.hard, bound)
	latest := p.inTurns(l, k.soft, bound)
	severe := k.tightest() < p.shielded(l.Model)
	switch {
	case now >= latest,
		!severe && l.Pool.Load() >= p.Calm,
		p.prompt(l) && (!severe || p.comesInBursts(l)):
		return at
	case severe && !l.Full && l.Rows < l.Model.Reach && l.Deadline != latency.Never:
		return max(at, latest)
	}
	return max(at, min(latest, lapse(now, l.Pool.Running.ends, k.soft, bound)))
}

// inTurns is when a batch must start so that all that wait can be served by the deadline,
// on as many executors as the batch may hold, even if it finds these taken for as long
// as such batches take in turns.
func (p *Params) inTurns(l *Load, slacks []Time, bound Time) Time {
	held := 1
	for held+1 < len(slacks) && slacks[held] >= bound {
		held++
	}
	return p.patience(l) - Time(l.Waiting)*l.Model.Table.At(l.Rows)/Time(l.Rows*held)
}

// Blocks reports whether some model could not wait until the batch ends.
func (p *Params) Blocks(l *Load) bool {
	return p.Keep > 0 && min(l.Model.Table.At(l.Rows), l.Model.Slack) > l.Pool.Kept.tightest()
}

// lifted reports whether the model's bursts are more than all executors but one could
// execute within its SLO. Then no executor is kept from it: most of a burst would be
// lost for the sake of few requests of other models.
func (p *Params) lifted(l *Load) bool {
	m := l.Model
	return m.Capacity > 0 && float64((l.Pool.Usable-1)*m.Capacity) < p.Lift*(m.Dispersion-1)
}

// lapse is when a batch may join the running batches, whose ends are given, the latest
// first. slacks are those of Kept.hard or Kept.soft. For each k with slacks[k] below the
// bound, the batch waits until fewer than k running batches have more than slacks[k] left.
func lapse(now Time, ends, slacks []Time, bound Time) Time {
	at := now
	for i, end := range ends {
		if i+1 >= len(slacks) {
			break
		}
		if slack := slacks[i+1]; slack < bound {
			at = max(at, end-slack)
		}
	}
	return at
}
