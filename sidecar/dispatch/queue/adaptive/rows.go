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
// Where such a b takes longer than T it is another: see brief.
func (p Params) MaxRows(l *Load) int {
	m, around := l.Model, float64(l.Pool.Around())
	if p.InTheWay == 0 || p.MostInTheWay == 0 || m.Rate == 0 || around == 0 {
		return m.MaxBatch // in the latter cases nothing is known of who shares the partitions
	}
	load := l.Pool.Load()
	weight := min(p.MostInTheWay, p.InTheWay*math.Pow(m.Dispersion, .75)/max(load*load, .01))
	cost := func(b int) float64 {
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
	if b := p.brief(l); b > 0 && p.Dearer > 0 && cost(b) <= (1+min(p.Dearer, weight+max(0, 1/load-1)))*least {
		return b
	}
	return best
}

// brief is the largest batch that others can wait for, zero if there is none. Where the
// best b takes longer than T, whoever is urgent is late behind any of its batches. Then
// it is that one, if it costs at most min(Dearer, k + 1/load - 1) more.
func (p Params) brief(l *Load) int {
	bearable := p.Bearable * float64(l.Pool.Around())
	b := l.Model.MaxBatch
	for b > 0 && float64(l.Model.Table.At(b)) > bearable {
		b--
	}
	return b
}
