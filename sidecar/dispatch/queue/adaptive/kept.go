// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import (
	"math"
	"slices"
	"sort"

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
	// longest is the longest time that a request of some model may take, and not more
	// than that model's slack.
	longest Time
	moved   float64 // how much the needs have changed since
}

// claim is what a model asks for, and how long it can wait.
type claim struct {
	slack Time
	share *Share
	times float64
	// flow and rush are the sums up to this one, as of the last renewal.
	flow, rush float64
}

// enough is the change of the needs, as a part of their sum, that is worth a renewal.
const enough = .01

// Claim enters a model that can wait so long and for which so many times the
// partitions that it needs are to be kept. Its share stays where it is.
func (k *Kept) Claim(slack Time, share *Share, times float64) {
	if times == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(k.models, slack, func(c claim, s Time) int {
		if c.slack <= s {
			return -1
		}
		return 1
	})
	k.models = slices.Insert(k.models, i, claim{slack: slack, share: share, times: times})
	k.moved = math.Inf(1)
}

// Release takes out the model whose share stays there.
func (k *Kept) Release(share *Share) {
	k.models = slices.DeleteFunc(k.models, func(c claim) bool { return c.share == share })
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
	k.longest = 0
	flow, rush := 0.0, 0.0
	for i := range k.models {
		c := &k.models[i]
		flow += c.share.Flow
		rush += c.share.Rush
		c.flow, c.rush = flow, rush
		if c.share.Need == 0 {
			continue
		}
		k.longest = max(k.longest, min(c.share.Alone, c.slack))
		sum += c.share.Need * c.times
		rest -= c.share.Need
		limit := max(1, usable-max(1, int(math.Round(sum*share))), min(usable-1, int(math.Ceil(rest*share))))
		for ; lowest > limit; lowest-- {
			k.hard[lowest-1] = c.slack
		}
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

// below is the flow and the rush of the models that have less slack than that.
func (k *Kept) below(slack Time) (flow, rush float64) {
	i := sort.Search(len(k.models), func(i int) bool { return k.models[i].slack >= slack })
	if i == 0 {
		return 0, 0
	}
	last := &k.models[i-1]
	return last.flow, last.rush
}
