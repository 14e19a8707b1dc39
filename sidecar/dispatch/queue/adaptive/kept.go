// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/latency"
)

// Kept says how many partitions a batch must leave to the models that cannot wait
// until it ends (trunk reservation). It is renewed when the needs of the models
// have changed, so that a decision is a comparison for each batch that runs.
type Kept struct {
	models []claim // those of the least slack first
	// hard[k] is the least slack of a model that k running batches and one more would
	// leave fewer partitions than it needs with those that are as tight; soft[k] that
	// of one whose blockers need no more than k partitions.
	hard, soft []Time
	moved      float64 // how much the needs have changed since
}

// claim is what a model needs, and how long it can wait.
type claim struct {
	slack Time
	need  *float64
	times float64
}

// enough is the change of the needs, as a part of their sum, that is worth a renewal.
const enough = .01

// Claim enters a model that can wait so long and for which so many times the
// partitions that it needs are to be kept. Its need stays where it is.
func (k *Kept) Claim(slack Time, need *float64, times float64) {
	if times == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(k.models, slack, func(c claim, s Time) int {
		if c.slack <= s {
			return -1
		}
		return 1
	})
	k.models = slices.Insert(k.models, i, claim{slack, need, times})
	k.moved = math.Inf(1)
}

// Release takes out the model whose need stays there.
func (k *Kept) Release(need *float64) {
	k.models = slices.DeleteFunc(k.models, func(c claim) bool { return c.need == need })
	k.moved = math.Inf(1)
}

// Moved notes by how much a model's need has changed.
func (k *Kept) Moved(by float64) { k.moved += math.Abs(by) }

// Renew brings Kept up to date with the needs of the models, whose sum is given, and
// the number of usable partitions.
func (k *Kept) Renew(need float64, usable int) {
	if len(k.models) == 0 || k.moved <= enough*need && len(k.hard) == usable+1 {
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
	for _, c := range k.models {
		if *c.need == 0 {
			continue
		}
		sum += *c.need * c.times
		limit := max(1, usable-max(1, int(math.Round(sum*share))))
		for ; lowest > limit; lowest-- {
			k.hard[lowest-1] = c.slack
		}
		rest -= *c.need
		limit = min(limit, max(1, int(math.Ceil(rest*share))))
		for ; few > limit; few-- {
			k.soft[few-1] = c.slack
		}
	}
}

// tightest is the least slack of a model.
func (k *Kept) tightest() Time {
	if len(k.models) == 0 {
		return latency.Never
	}
	return k.models[0].slack
}
