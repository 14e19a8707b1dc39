// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import (
	"cmp"
	"math"
	"slices"
)

const (
	// halfLife is how many seconds old a cell is that counts half, leastWeight what the
	// oldest still counts.
	halfLife    = 5
	leastWeight = .15
	// A disturbance is over within period seconds. What agrees beyond one period is no
	// disturbance: each further one counts as a second for periodLife seconds, then half.
	period, periodLife = 10, 300
	// A calibration counts as so many seconds; half as much after calibratedLife seconds,
	// and leastCalibrated of it for ever. Each second that contradicts it takes from it as
	// from a share: one halves it, two leave a third. Where it was wrong about a size that
	// is known well, it counts distrusted of that for the others.
	calibratedWeight, calibratedLife, leastCalibrated, distrusted = 2.5, 600, .3, .3
	// wrong is the difference, as a logarithm, by which a calibration was wrong.
	wrong = .2
	// doubt is the relative error that one second alone may have.
	doubt = .3
	// leastError is the relative standard error that is left to a value at least.
	leastError = .005
	// disturbed is the factor, as a logarithm, from which on a second counts as
	// disturbed; agreeing the difference within which seconds agree.
	disturbed, agreeing = .05, .1
	// corrected is what a cell counts that was measured in a disturbed second.
	corrected = .5
	// A size is fresh with the weight of freshEnough seconds.
	freshEnough = .5
	// sure is the weight in seconds from which on a size is known by itself.
	sure = 3
	// past is how many seconds ago a second is of which it is known by then whether it was
	// disturbed, or the first of a lasting change.
	past = 10
	// enough executions of a batch size tell how much it varies.
	enough = 5
	// calibration stands for the moment in which all calibrations were made.
	calibration = 0
)

// weighed is a cell with what it counts.
type weighed struct {
	*cell
	weight, age float64
}

// evidence is what is known of one size from its own executions.
type evidence struct {
	rows  int
	cells []weighed // by second
	fresh float64
	total uint64 // executions, not counting calibrations
}

// value is the result for one size.
type value struct {
	rows     int
	log      float64
	err      float64 // relative standard error
	evidence float64 // in seconds that agree
	fresh    float64 // of these, by age alone
	// deviation of executions from their mean, relative, from so many.
	deviation float64
	count     int
}

// gather lists what is known of each size, the freshest first.
func (c *Curve) gather(now uint32) []evidence {
	own, known := c.observed, c.calibrated
	if c.serving {
		own = c.served
	} else if len(known) == 0 {
		known = c.served
	}
	all := make([]evidence, 0, len(own)+len(known))
	for rows, s := range own {
		e := evidence{rows: rows, total: s.total, cells: make([]weighed, 0, len(s.ring)+1)}
		s.ring[s.last].close()
		for i := range s.ring {
			observed := &s.ring[(s.next+i)%len(s.ring)]
			// One execution of a second may be its only slow one.
			n := float64(observed.n)
			age := float64(now - min(now, observed.second))
			w := n / (n + .5) * math.Exp2(-age/halfLife)
			e.fresh += w
			e.cells = append(e.cells, weighed{observed, max(leastWeight, w), age})
		}
		all = append(all, e)
	}
	if c.calibrates == 0 {
		c.calibrates = now // before anything else was seen
	}
	w := calibratedWeight * max(leastCalibrated, math.Exp2(-float64(now-min(now, c.calibrates))/calibratedLife))
	for rows, s := range known {
		calibrated := &cell{second: calibration}
		for i := len(s.ring) - 1; i >= 0; i-- {
			from := &s.ring[(s.next+i)%len(s.ring)]
			for _, us := range from.us[:from.n] {
				if calibrated.n < perSecond {
					calibrated.us[calibrated.n] = us
					calibrated.n++
				}
			}
		}
		calibrated.close()
		i := slices.IndexFunc(all, func(e evidence) bool { return e.rows == rows })
		if i < 0 {
			i = len(all)
			all = append(all, evidence{rows: rows})
		}
		against := 0.
		for _, c := range all[i].cells {
			if math.Abs(c.log-calibrated.log) > agreeing {
				against++
			}
		}
		all[i].cells = append(all[i].cells, weighed{calibrated, w / (1 + against), 0})
	}
	slices.SortFunc(all, func(a, b evidence) int { return cmp.Or(-cmp.Compare(a.fresh, b.fresh), cmp.Compare(a.rows, b.rows)) })
	return all
}

// onlyFresh is the part of evidence that is fresh, without calibrations.
func onlyFresh(all []evidence) []evidence {
	var fresh []evidence
	for _, e := range all {
		if e.fresh < freshEnough {
			break
		}
		cells := e.cells
		e.cells = nil
		for _, c := range cells {
			if c.second != calibration && c.weight > leastWeight {
				e.cells = append(e.cells, c)
			}
		}
		if len(e.cells) > 0 { // many old cells may weigh as much as a fresh one, and none of them is
			fresh = append(fresh, e)
		}
	}
	return fresh
}

// weigh makes one value of each size's cells. The freshest size goes first: what its cells
// say of a second, whether and by how much everything was slower than now, holds for the
// cells of the others.
func weigh(all []evidence) ([]value, map[uint32]*votes) {
	shifts := map[uint32]*votes{}
	values := make([]value, 0, len(all))
	trust := 1.0 // in calibrations
	for first, e := range all {
		logs := make([]weighted, len(e.cells))
		for i, c := range e.cells {
			logs[i] = weighted{c.log, c.weight}
			if c.second == calibration {
				logs[i].weight *= trust
			}
			shift := c.shift
			if first == 0 {
				shift = 0 // it is what the others are held against
			}
			if v := shifts[c.second]; v != nil {
				shift = v.shift()
			}
			if shift != 0 {
				logs[i].value -= shift
				logs[i].weight *= corrected
			}
		}
		center := median(logs)
		for i, c := range e.cells {
			if c.second == calibration && e.fresh >= sure && math.Abs(logs[i].value-center) > wrong {
				trust = distrusted
			}
			v := shifts[c.second]
			if v == nil {
				v = &votes{sure: e.fresh >= sure}
				shifts[c.second] = v
			}
			v.add(c.log - center)
		}
		values = append(values, e.value(logs, center))
	}
	slices.SortFunc(values, func(a, b value) int { return a.rows - b.rows })
	return values, shifts
}

// votes are by how much a second was slower than now, as the freshest sizes have it that
// were executed in it.
type votes struct {
	n   int
	log [3]float64
	// sure is true if the size that voted first is known well.
	sure bool
}

func (v *votes) add(log float64) {
	if v.n < len(v.log) {
		v.log[v.n] = log
		v.n++
	}
}

// shift is the middle one of three, or the first of one or two; 0 for a difference that
// does not count as a disturbance.
func (v *votes) shift() float64 {
	shift := v.log[0]
	if v.n == len(v.log) {
		a, b, c := v.log[0], v.log[1], v.log[2]
		shift = max(min(a, b), min(max(a, b), c))
	}
	if math.Abs(shift) <= disturbed {
		return 0
	}
	return shift
}

// value averages the cells that agree with the median.
func (e *evidence) value(logs []weighted, center float64) value {
	off := make([]weighted, len(logs))
	for i, l := range logs {
		off[i] = weighted{math.Abs(l.value - center), l.weight}
	}
	width := max(agreeing, 3*1.48*median(off))
	v := value{rows: e.rows, fresh: e.fresh}
	var sum, spread, against, periods float64
	before := uint32(0)
	executions := make([]float64, 0, perSecond*len(logs))
	n := 0
	for i, l := range logs {
		if math.Abs(l.value-center) > width {
			against += l.weight
			continue
		}
		n++
		v.evidence += l.weight
		sum += l.weight * l.value
		if c := e.cells[i]; c.second != calibration && c.second/period != before {
			before = c.second / period
			periods += math.Exp2(-c.age / periodLife)
		}
		factor := math.Exp(l.value - e.cells[i].log)
		for _, us := range e.cells[i].us[:e.cells[i].n] {
			executions = append(executions, float64(us)*factor)
		}
	}
	v.log = sum / v.evidence
	agree := v.evidence
	for _, l := range logs {
		if math.Abs(l.value-center) <= width {
			spread += l.weight * (l.value - v.log) * (l.value - v.log)
		}
	}
	spread /= agree
	v.evidence += max(0, periods-1)
	// What disagrees takes away from what agrees.
	v.evidence *= v.evidence / (v.evidence + against)
	alone := doubt / (v.evidence * v.evidence)
	v.err = math.Sqrt(leastError*leastError + alone*alone + spread/float64(n))
	v.count = len(executions)
	if mean, deviation := moments(executions); v.count > 1 {
		v.deviation = deviation / mean
	}
	return v
}

type weighted struct{ value, weight float64 }

// median of weighted values; 0 of none. Between two that each have half of the weight
// it is the lower: executions are disturbed by being slowed down.
func median(all []weighted) float64 {
	switch len(all) {
	case 0:
		return 0
	case 1:
		return all[0].value
	}
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	total := 0.0
	for _, w := range sorted {
		total += w.weight
	}
	sum := 0.0
	for _, w := range sorted {
		if sum += w.weight; sum >= total/2 {
			return w.value
		}
	}
	return sorted[len(sorted)-1].value
}
