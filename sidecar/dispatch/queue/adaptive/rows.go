// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import "math"

// MaxRows is how many rows a batch has at most: the b of the least
//
//	l(b)/b x (1 + k l(b)/T), k = min(MostInTheWay, InTheWay dispersion^(3/4) / load^2)
//
// with T the mean SLO of the requests that share the executors. A batch takes an
// executor from others for l(b), which cannot be undone. Where rows gain little
// by company, many small batches cost next to nothing, and a more urgent batch can
// start in between. That is worth the more, the burstier arrivals are and the more
// time of the executors is to spare.
//
// T leaves out the models that the batch's model blocks severely: see shielded.
// Executors are kept from it for these, and small batches would not help them, as a
// single request takes too long already. Only batches of whole requests count, of the
// rows that requests have on average.
//
// Where such a b takes longer than T, the size is that of brief, unless the model is
// flooded.
func (p *Params) MaxRows(l *Load) int {
	m := l.Model
	around := float64(l.Pool.Around(p.shielded(m)))
	if p.InTheWay == 0 || p.MostInTheWay == 0 || m.Rate == 0 || around == 0 {
		return m.MaxBatch // in the latter cases the models that share the executors are not known
	}
	load := l.Pool.Load()
	weight := min(p.MostInTheWay, p.InTheWay*math.Pow(m.Dispersion, .75)/max(load*load, .01))
	cost := func(b int) float64 {
		t := float64(m.Table.At(b))
		return t / float64(b) * (1 + weight*t/around)
	}
	best, least := m.MaxBatch, math.Inf(1)
	request := max(1, m.Usual)
	for b := request; b <= m.MaxBatch && m.Table.At(b) <= m.SLO; b += request {
		if c := cost(b); c < least {
			best, least = b, c
		}
	}
	if float64(m.Table.At(best)) <= around || math.IsInf(least, 1) || p.flooded(m) {
		return best
	}
	if b := p.brief(l, around); b > 0 && p.Dearer > 0 && cost(b) <= (1+min(p.Dearer, weight+max(0, 1/load-1)))*least {
		return b
	}
	return best
}

// flooded reports whether the model's bursts take longer than its SLO, executed row by
// row: smaller batches would make requests of the model itself late.
func (p *Params) flooded(m *Model) bool {
	return m.Dispersion > p.Bursty && m.Dispersion*float64(m.Table.At(1)) > float64(m.SLO)
}

// brief is the largest batch that others can wait for, zero if there is none. Where the
// best b takes longer than T, an urgent request is late behind any of its batches. Then
// the size is that of brief, if it costs at most min(Dearer, k + 1/load - 1) more.
func (p *Params) brief(l *Load, around float64) int {
	bearable := p.Bearable * around
	b := l.Model.MaxBatch
	for b > 0 && float64(l.Model.Table.At(b)) > bearable {
		b--
	}
	return b
}

// shielded is the slack below which a model is blocked severely by another one: a
// single request of that takes much longer than it can wait.
func (p *Params) shielded(m *Model) Time {
	return min(Time(p.Shielded*float64(m.Alone)), m.Slack)
}
