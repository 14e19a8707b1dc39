// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import (
	"math"
	"slices"
	"sort"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/latency"
)

// Kept is how many executors a batch must leave to the models that cannot wait
// until it ends (trunk reservation). It is renewed when the needs of the models
// have changed, so that a decision takes one comparison per running batch.
type Kept struct {
	models []claim // those of the least slack first
	// hard[k] is the least slack of a model that k running batches and one more would
	// leave fewer executors than it needs with those that are as tight; soft[k] that
	// of one whose blockers need no more than k executors.
	hard, soft []Time
	// keeps is true if executors are kept for some model; tight is the least slack of one.
	keeps bool
	tight Time
	// longest is the longest time that a request of some model may take, and not more
	// than that model's slack.
	longest Time
	moved   float64 // how much the needs have changed since
}

// claim is a model's share of the pool, and how long its requests can wait.
type claim struct {
	slack Time
	share *Share
	// times and chance are Params.Keep and Params.Chance.
	times, chance float64
	// flow and urgency are the sums up to this one, as of the last renewal.
	flow, urgency float64
	// looser are those after this one.
	looser others
}

// enough is the change of the needs, as a part of their sum, that is worth a renewal.
const enough = .01

// Claim enters a model that can wait so long and for which so many times the
// executors that it needs are to be kept, if more than this part of its requests would
// be late otherwise. Its share stays where it is.
func (k *Kept) Claim(slack Time, share *Share, times, chance float64) {
	if times == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(k.models, slack, func(c claim, s Time) int {
		if c.slack <= s {
			return -1
		}
		return 1
	})
	k.models = slices.Insert(k.models, i, claim{slack: slack, share: share, times: times, chance: chance})
	k.moved = math.Inf(1)
}

// Release removes the model with that share.
func (k *Kept) Release(share *Share) {
	k.models = slices.DeleteFunc(k.models, func(c claim) bool { return c.share == share })
	k.moved = math.Inf(1)
}

// Moved notes by how much a model's need has changed.
func (k *Kept) Moved(by float64) { k.moved += math.Abs(by) }

// Renew brings Kept up to date with the needs of the models, whose sum is given, and
// the number of usable executors.
func (k *Kept) Renew(need float64, usable int) {
	if len(k.models) == 0 {
		k.keeps = false
		return
	}
	if k.moved <= enough*need && len(k.hard) == usable+1 {
		return
	}
	k.moved = 0
	k.hard = slices.Grow(k.hard[:0], usable+1)[:usable+1]
	k.soft = slices.Grow(k.soft[:0], usable+1)[:usable+1]
	for i := range k.hard {
		k.hard[i], k.soft[i] = latency.Never, latency.Never
	}
	share := min(1, float64(usable)/max(need, 1)) // where more is asked for than there is, each need counts with its part
	sum, rest := 0.0, need
	lowest, few := usable, usable
	k.longest, k.keeps = 0, false
	flow, urgency := 0.0, 0.0
	var looser others
	for i := len(k.models) - 1; i >= 0; i-- {
		k.models[i].looser = looser
		looser.add(k.models[i].share, k.models[i].slack)
	}
	for i := range k.models {
		c := &k.models[i]
		flow += c.share.Flow
		urgency += c.share.Urgency
		c.flow, c.urgency = flow, urgency
		if c.share.Need == 0 {
			continue
		}
		k.longest = max(k.longest, min(c.share.Alone, c.slack))
		sum += c.share.Need * c.times
		rest -= c.share.Need
		limit := max(1, usable-max(1, int(math.Round(sum*share))), min(usable-1, int(math.Ceil(rest*share))))
		fewest := min(limit, max(1, int(math.Ceil(rest*share))))
		if limit >= lowest && fewest >= few {
			continue
		}
		o := &c.looser
		if d := o.delay(c, float64(usable), rest*share); d < c.chance || o.flow*o.late(limit, rest*share) > flow*d {
			continue // keeping would cost the others more requests than it brings
		}
		if !k.keeps {
			k.keeps, k.tight = true, c.slack
		}
		for ; lowest > limit; lowest-- {
			k.hard[lowest-1] = c.slack
		}
		for ; few > fewest; few-- {
			k.soft[few-1] = c.slack
		}
	}
}

// tightest is the least slack of a model that executors are kept for; Never if there is none.
func (k *Kept) tightest() Time {
	if !k.keeps {
		return latency.Never
	}
	return k.tight
}

// others are sums over the models of more slack than that of a claim. The fields are those of Share.
type others struct {
	// flow is in rows per second. In alone, slack and burst each model is weighted by its flow.
	flow, alone, slack, burst float64
	// need is in executors. In long each model is weighted by its need.
	need, long float64
	// turns is the time of one batch of each model, one after another.
	turns float64
}

// add adds a model with its slack.
func (o *others) add(s *Share, slack Time) {
	o.flow += s.Flow
	o.alone += s.Flow * float64(s.Alone)
	o.slack += s.Flow * float64(slack)
	o.burst += s.Flow * max(1, s.Burst)
	o.need += s.Need
	o.long += s.Need * float64(s.Long)
	if s.Flow > 0 {
		o.turns += float64(s.Long)
	}
}

// late is the part of these models' requests that is late where so many executors are left to them, which they keep busy to the extent of a load.
func (o *others) late(executors int, load float64) float64 {
	if o.flow <= 0 || o.alone <= 0 || o.turns*o.flow <= float64(executors)*o.slack {
		return 0
	}
	return longWait(float64(executors), load, o.slack/o.alone*o.flow/o.burst)
}

// delay is the part of the claim's requests that is late where these models may use all executors.
func (o *others) delay(c *claim, executors, load float64) float64 {
	if o.flow <= 0 || o.long <= 0 {
		return 1 // their load is not known
	}
	inTime := min(executors, max(1, c.share.Executors))
	return longWait(inTime, load*inTime/executors, float64(c.slack)*o.need/o.long*o.flow/o.burst)
}

// longWait is about the part of arrivals that wait longer than some patience, in executions, where n executors execute a load, which is in executors:
// the probability of waiting at all is Sakasegawa's for M/M/n (1977), and the wait then exponential as it is for executions of constant length.
func longWait(n, load, patience float64) float64 {
	busy := max(0, load) / n
	if busy >= 1 {
		return 1
	}
	return math.Pow(busy, math.Sqrt(2*(n+1))-1) * math.Exp(-2*n*(1-busy)*patience)
}

// below is the flow and the urgency of the models that have less slack than that.
func (k *Kept) below(slack Time) (flow, urgency float64) {
	i := sort.Search(len(k.models), func(i int) bool { return k.models[i].slack >= slack })
	if i == 0 {
		return 0, 0
	}
	last := &k.models[i-1]
	return last.flow, last.urgency
}
