// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "math"

const (
	// How much a long batch is in the way of others, see Most, and at most; burst
	// is how many times the dispersion it must be possible to serve in time, and
	// surge how many times where batches take longer than others can wait.
	inTheWay, mostInTheWay, burst, surge = .02, .3, 2, 8
	// bearable is the part of the SLO of others that they can wait behind a batch;
	// dearer is how much more such a batch may cost at most.
	bearable, dearer = .8, .3
)

// Most is the b of the least
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
func (a adaptive) Most(d Demand) int {
	if a.without.has(ruleSize) || d.Rate == 0 || d.Around == 0 {
		return d.MaxBatch // in the latter cases nothing is known of who shares the partitions
	}
	around, partitions := float64(d.Around), float64(d.Partitions)
	weight := min(mostInTheWay, inTheWay*math.Pow(d.Dispersion, .75)/max(d.Load*d.Load, .01))
	if !a.without.has(ruleMany) {
		weight *= math.Sqrt(min(1, few/partitions))
	}
	// served is how many rows batches of b can serve within the SLO.
	served := func(b int) float64 {
		return partitions * float64(b) * math.Floor(float64(d.SLO)/float64(d.Table.At(b)))
	}
	cost := func(b int) float64 {
		if served(b) < burst*d.Dispersion && !a.without.has(ruleBurst) {
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
	rare := min(1, few*few/(partitions*partitions))
	if more := min(dearer, rare*(weight+max(0, 1/d.Load-1))); brief > 0 && cost(brief) <= (1+more)*least && !a.without.has(ruleBrief) {
		return brief
	}
	if served(best) >= surge*d.Dispersion && !a.without.has(ruleSurge) {
		return best
	}
	return d.MaxBatch
}
