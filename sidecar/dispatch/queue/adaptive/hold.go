// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import "math"

// Hold returns the batch size, in rows, that is worth giving up requests for under a
// load, and how much later than planned such a batch shall be able to end. It is the
// drop policy `reserve`.
//
// No request is given up for a batch that is larger than the load asks for: reserve
// holds on to the smallest b with which the executors carry the present load,
// l(b)/b <= l(b*)/b* / load, b* being the largest within reach. That is one
// row where executors are plenty, and b* where more is asked for than can be
// done, or where there is a single executor: a small batch then makes the next
// ones wait, and these are as small.
//
// b* leaves no time for an executor that becomes free late, or for requests that
// come late: l(b*) + b*/rate is the SLO. So a model that has n executors to
// itself, to stagger its batches on, holds on to no more than what leaves time
// to gather it n times, and 1 + min(Gathers, g^2) times at the most, g being the part
// of l(1) that a row saves which joins: where company saves little, time does
// not buy much. From Plenty executors on it is less, as one of many is soon free:
// Plenty/n of what exceeds one.
//
// Far past the peak, requests are given up in any case. Then reserve gives up the
// requests that would start only just in time, so that an execution that takes
// longer than predicted does not make a whole batch late: up to a quarter of l(b*),
// and half of what the SLO leaves for it.
func (p *Params) Hold(l *Load, load float64) (rows int, edge Time) {
	m := l.Model
	if m.Rate == 0 {
		return m.Reach, 0
	}
	b := m.Reach
	if l.Pool.Usable > 1 {
		b = m.Table.Nearly(m.Reach, p.spared(load))
	}
	need := max(1, m.Need/max(1, load)) // its share of the executors, if the load is above 1
	gap := min(1+p.spareGathers(l, need), need) / m.Rate * 1e9
	for b > 1 && float64(m.Table.At(b))+float64(b)*gap > float64(m.SLO) {
		b--
	}
	reach := float64(m.Table.At(m.Reach))
	rest := float64(m.SLO) - reach - float64(m.Reach)/m.Rate*1e9
	return b, Time(max(0, min(reach*min(p.Edge, (load-p.Overload)/2), rest/2)))
}

// spared is by how much less efficient than b* a batch may be that is held on to. While
// the executors can carry the load, what the last rows of a batch save is not worth the
// requests that would be given up for them. They can carry somewhat more than 1: see
// Params.Overload.
func (p *Params) spared(load float64) float64 {
	if load >= 1+p.Thrift {
		return 0
	}
	return max(0, 1/load-1, p.Thrift)
}

// spareGathers is for how many gathering times there is room beside the first.
func (p *Params) spareGathers(l *Load, need float64) float64 {
	return min(p.Gathers, l.Model.Saved*l.Model.Saved) * min(1, p.Plenty/need)
}

// SurgeLoad is the load of a surge that the rates do not show yet. It is estimated from
// the rows that wait, less those that may be chance, over the age of the batch's oldest
// request. It is the pool's load unless that request is older than one of a batch that
// was gathered at the rate.
func (p *Params) SurgeLoad(now Time, l *Load, waiting int) float64 {
	load := l.Pool.Load()
	m := l.Model
	age := now - l.Arrival
	if m.Rate == 0 || age <= m.SLO-m.Table.At(m.Reach) {
		return load
	}
	rows := float64(waiting) - math.Sqrt(float64(waiting)*m.Dispersion)
	return load * max(1, rows/age.Duration().Seconds()/m.Rate)
}
