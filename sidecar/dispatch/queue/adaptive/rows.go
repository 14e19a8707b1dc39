// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import "math"

// MaxRows is how many rows a batch has at most: the b of the least
//
//	l(b)/b x (1 + k l(b)/T), k = min(MostInTheWay, InTheWay dispersion^(3/4) / load^2)
//
// with T the mean SLO of the requests that share the partitions. A batch takes a
// partition from others for l(b), which cannot be undone. Where rows gain little
// by company, many small batches cost next to nothing, and who is more urgent
// goes between them. That is worth the more the burstier arrivals are, the
// more time of the partitions is to spare.
//
// Where such a b takes longer than T, whoever is urgent is late behind any of its
// batches: see brief.
func (p Params) MaxRows(l *Load) int {
	m, around := l.Model, float64(l.Pool.Around())
	if p.InTheWay == 0 || p.MostInTheWay == 0 || m.Rate == 0 || around == 0 {
		return m.MaxBatch // in the latter cases nothing is known of who shares the partitions
	}
	load := l.Pool.Load()
	weight := min(p.MostInTheWay, p.InTheWay*math.Pow(m.Dispersion, .75)/max(load*load, .01))
	if p.Many > 0 {
		weight *= math.Sqrt(min(1, p.Many/float64(m.Partitions)))
	}
	cost := func(b int) float64 {
		if p.Burst > 0 && p.served(l, b) < p.Burst*m.Dispersion {
			return math.Inf(1)
		}
		t := float64(m.Table.At(b))
		return t / float64(b) * (1 + weight*t/around)
	}
	best, least := m.MaxBatch, math.Inf(1)
	for b := 1; b <= m.MaxBatch && m.Table.At(b) <= m.SLO; b++ {
		if c := cost(b); c < least {
			best, least = b, c
		}
	}
	if float64(m.Table.At(best)) <= around || math.IsInf(least, 1) {
		return best
	}
	brief := best
	for brief > 0 && float64(m.Table.At(brief)) > p.Bearable*around {
		brief--
	}
	rare := min(1, math.Pow(8/float64(m.Partitions), 2))
	if more := min(p.Dearer, rare*(weight+max(0, 1/load-1))); brief > 0 && p.Dearer > 0 && cost(brief) <= (1+more)*least {
		return brief
	}
	if p.Surge > 0 && p.served(l, best) >= p.Surge*m.Dispersion {
		return best
	}
	return m.MaxBatch
}

// served is how many rows batches of b can serve within the SLO.
func (p Params) served(l *Load, b int) float64 {
	m := l.Model
	return float64(m.Partitions) * float64(b) * math.Floor(float64(m.SLO)/float64(m.Table.At(b)))
}
