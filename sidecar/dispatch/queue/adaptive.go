// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// adaptive is ours: deferred batching that starts earlier by as much as that is
// worth. Alone, a candidate waits as under deferred, until a further row could
// not join it. It starts earlier
//
//   - at once, if it runs nearly as efficiently as the largest batch within
//     reach, or if there is a single partition, which has no other to stagger
//     with, or if the model keeps fewer than 1.4 partitions busy. Staggering is
//     between a model's own batches. A model with less than about one partition
//     to itself competes with the others for every partition that becomes free;
//     its batches grow while it waits for its turn, and if it waited on purpose,
//     its turn would come too late. Where the models ask for more partitions
//     than there are, each counts with its share;
//   - by l(reach) x (1/2 - the mean share of a batch that partitions have left).
//     Partitions that run evenly staggered are half-way through on average. By
//     as much as they are further, time is to spare that would be lost: then
//     smaller batches cost nothing, and the requests to come find the queue
//     shorter;
//   - by l(reach) x the share of the load that is of models which keep less than
//     one partition busy. They do not wait, so that partitions are taken whenever they
//     are free, and who waits until the last moment finds none;
//   - by .3 l(reach) x (dispersion - 4), if requests come in long bursts. After one
//     there is silence: little comes that could join the batch, and what a small
//     one wastes is not missed.
//
// But where requests come in bursts it does not start before .06 l(1), times the
// square of the part of it that a row saves which joins, times 1 - 2/dispersion,
// has passed since the last of them: where there is one there are more, and the
// first must not take a partition from all the others. The fewer than 8
// partitions there are, the more does it take: then the 2 counts with N/8.
//
// Under low load there is no queue to shorten. That is while more than the share
// idle of the partitions is free, and, unless requests come in bursts, while the
// load asks for so few that by chance it does not take them all: with idle at 1/2
// for s + 2 sqrt(s) + 1 < N, s being what all models keep busy. Then a candidate
// starts at once while fewer partitions are busy than the load needs, and one at
// least, and else waits as under deferred: a lone request does not wait for
// company, and the load still takes about as few partitions as it can (Symphony,
// section 3.5).
//
// How many rows a batch has at most is in adaptive_size.go. Each of these rules can
// be taken away: see adaptive_rules.go.
type adaptive struct {
	deferred
	idle    float64
	without rules
}

const (
	// evenly is the share of a batch that staggered partitions have left.
	evenly = .5
	// crowded is the number of partitions below which a model does not stagger.
	crowded = 1.4
	// Arrivals of a dispersion above bursty come in bursts, and quiet is how many
	// l(1) must then pass without one, if company saves a row all of it. haste is by
	// how many times l(reach) a candidate starts earlier for each unit above torrent.
	bursty, quiet  = 2, .06
	torrent, haste = 4, .3
	// few is the number of partitions below which it takes long until one is free.
	few = 8
)

// defaultIdle is the parameter `idle` unless told otherwise.
const defaultIdle = 0.5

func adaptiveKind() disciplineKind {
	return disciplineKind{
		Description: Description{
			Name:        "adaptive",
			Help:        "defer, but start earlier by as much as partitions would idle, and at once where models compete for few partitions",
			DefaultDrop: "reserve",
			Parameters: []Parameter{{
				Name: "idle", Default: strconv.FormatFloat(defaultIdle, 'g', -1, 64),
				Help: "load is low while more than this share of the partitions is free, or the models need clearly fewer than the rest: then batches start at once only while fewer are busy than the load needs, so that the others stay idle",
			}, {
				Name: "without", Help: "rules that are taken away, to measure what they bring, such as quiet,brief; there are " + strings.Join(AdaptiveRules(), ", "),
			}},
		},
		make: func(params map[string]string) (Discipline, error) {
			a := adaptive{idle: defaultIdle}
			var err error
			if text, ok := params["idle"]; ok {
				a.idle, err = strconv.ParseFloat(text, 64)
				if err != nil || !(a.idle >= 0 && a.idle <= 1) {
					return nil, fmt.Errorf("parameter idle=%q is not a number from 0 to 1", text)
				}
			}
			if a.without, err = rulesOf(params["without"]); err != nil {
				return nil, err
			}
			return a, nil
		},
	}
}

func (adaptive) Name() string        { return "adaptive" }
func (adaptive) DefaultDrop() string { return "reserve" }

func (a adaptive) Hurry(now Time, c *Candidate, p Pressure) Time {
	at := a.hurry(now, c, p)
	if p.Dispersion > bursty && !a.without.has(ruleQuiet) {
		counts := 1.0
		if !a.without.has(ruleScarce) {
			counts = min(1, float64(p.Usable)/few)
		}
		silence := quiet * (1 - bursty/p.Dispersion*counts) * p.Saved * p.Saved * float64(p.Alone)
		at = max(at, p.Newest+Time(silence))
	}
	return at
}

func (a adaptive) hurry(now Time, c *Candidate, p Pressure) Time {
	usable := float64(p.Usable)
	calm := p.Dispersion <= bursty && p.AllNeed > 0
	if float64(p.Free) > a.idle*usable || calm && p.AllNeed+2*math.Sqrt(p.AllNeed)+1 < 2*(1-a.idle)*usable {
		if float64(p.Usable-p.Free) < max(1, p.AllNeed) {
			return now
		}
		return Never
	}
	if p.Usable == 1 || c.Rows >= p.Worth && !a.without.has(ruleWorth) {
		return now
	}
	if need := p.Need * min(1, usable/p.AllNeed); need > 0 && need < crowded && !a.without.has(ruleLight) {
		return now
	}
	reach, early := float64(p.Reach), 0.0
	if !a.without.has(ruleStagger) {
		early = evenly - p.Left/usable
	}
	if p.Dispersion > torrent && !a.without.has(ruleHaste) {
		early += haste * (p.Dispersion - torrent)
	}
	if p.AllNeed > 0 && !a.without.has(ruleCrowd) {
		early += p.Crowd / p.AllNeed
	}
	wait := float64(c.Frontrun-now) - reach*early
	if wait <= 0 {
		return now
	}
	// Left falls until then, so the moment comes before the wait is over.
	return now + 1 + Time(wait/(1+reach*p.Ebb/usable))
}
