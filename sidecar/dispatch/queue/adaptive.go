// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math"
	"strconv"
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
// A batch has no more rows than the b of the least
//
//	l(b)/b x (1 + k l(b)/T), k = min(.3, .02 dispersion^(3/4) / load^2) / max(1, sqrt(N/8)),
//
// with T the mean SLO of the requests that share the N partitions. A batch takes a
// partition from others for l(b), which cannot be undone. Where rows gain little
// by company, many small batches cost next to nothing, and who is more urgent
// goes between them. That is worth the more the burstier arrivals are, the
// more time of the partitions is to spare, and the longer it takes until another
// of them is free. But a burst, of twice the dispersion, is not split further than
// the partitions can serve within the SLO.
//
// Where such a b takes longer than T, whoever is urgent is late behind any of its
// batches. Then it is the largest that takes at most .8 T, if that costs at most
//
//	min(.3, (k + 1/load - 1) min(1, (8/N)^2))
//
// more. Else it is that b nevertheless, if the partitions can serve a burst four
// times as large with it, and if not, nothing is split: few large batches leave
// more partitions alone.
type adaptive struct {
	deferred
	idle float64
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
	// How much a long batch is in the way of others, see Most, and at most; burst
	// is how many times the dispersion it must be possible to serve in time, and
	// surge how many times where batches take longer than others can wait.
	inTheWay, mostInTheWay, burst, surge = .02, .3, 2, 8
	// bearable is the part of the SLO of others that they can wait behind a batch;
	// dearer is how much more such a batch may cost at most.
	bearable, dearer = .8, .3
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
			}},
		},
		make: func(params map[string]string) (Discipline, error) {
			text, ok := params["idle"]
			if !ok {
				return adaptive{idle: defaultIdle}, nil
			}
			idle, err := strconv.ParseFloat(text, 64)
			if err != nil || !(idle >= 0 && idle <= 1) {
				return nil, fmt.Errorf("parameter idle=%q is not a number from 0 to 1", text)
			}
			return adaptive{idle: idle}, nil
		},
	}
}

func (adaptive) Name() string        { return "adaptive" }
func (adaptive) DefaultDrop() string { return "reserve" }

func (a adaptive) Hurry(now Time, c *Candidate, p Pressure) Time {
	at := a.hurry(now, c, p)
	if p.Dispersion > bursty {
		silence := quiet * (1 - bursty/p.Dispersion*min(1, float64(p.Usable)/few)) * p.Saved * p.Saved * float64(p.Alone)
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
	if p.Usable == 1 || c.Rows >= p.Worth {
		return now
	}
	if need := p.Need * min(1, usable/p.AllNeed); need > 0 && need < crowded {
		return now
	}
	reach := float64(p.Reach)
	early := evenly - p.Left/usable + haste*max(0, p.Dispersion-torrent)
	if p.AllNeed > 0 {
		early += p.Crowd / p.AllNeed
	}
	wait := float64(c.Frontrun-now) - reach*early
	if wait <= 0 {
		return now
	}
	// Left falls until then, so the moment comes before the wait is over.
	return now + 1 + Time(wait/(1+reach*p.Ebb/usable))
}

// Most is the batch of the least cost, where that counts that others have to
// wait for it.
func (adaptive) Most(d Demand) int {
	if d.Rate == 0 || d.Around == 0 {
		return d.MaxBatch // nothing is known of who shares the partitions
	}
	around, partitions := float64(d.Around), float64(d.Partitions)
	weight := min(mostInTheWay, inTheWay*math.Pow(d.Dispersion, .75)/max(d.Load*d.Load, .01))
	weight *= math.Sqrt(min(1, few/partitions))
	// served is how many rows batches of b can serve within the SLO.
	served := func(b int) float64 {
		return partitions * float64(b) * math.Floor(float64(d.SLO)/float64(d.Table.At(b)))
	}
	cost := func(b int) float64 {
		if served(b) < burst*d.Dispersion {
			return math.Inf(1)
		}
		l := float64(d.Table.At(b))
		return l / float64(b) * (1 + weight*l/around)
	}
	best, least := d.MaxBatch, math.Inf(1)
	for b := 1; b <= d.MaxBatch && d.Table.At(b) <= d.SLO; b++ {
		if c := cost(b); c < least {
			best, least = b, c
		}
	}
	if d.Table.At(best) <= d.Around || math.IsInf(least, 1) {
		return best
	}
	brief := best
	for brief > 0 && float64(d.Table.At(brief)) > bearable*around {
		brief--
	}
	scarce := min(1, few*few/(partitions*partitions))
	if more := min(dearer, scarce*(weight+max(0, 1/d.Load-1))); brief > 0 && cost(brief) <= (1+more)*least {
		return brief
	}
	if served(best) >= surge*d.Dispersion {
		return best
	}
	return d.MaxBatch
}
