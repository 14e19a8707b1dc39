// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import (
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/mat"
)

const (
	// common is the part of a shape's variance that all sizes share; the rest of two
	// sizes' errors is correlated by 1/e per octave between them.
	common = .5
	// mostSizes enter the combination, the best known ones: it takes time with their cube.
	mostSizes = 64
	// normal is the half width of the 95% interval in standard errors.
	normal = 1.96
)

// Learnt is what is believed of l(b) at one moment.
type Learnt struct {
	points []point
	// alpha is the slope above the last point.
	alpha float64
	// shifts are by how much each second was slower than what is believed.
	shifts map[uint32]*votes
	second uint32 // when
	// Source is where most of it comes from.
	Source Source
	// Usable is true if deadlines may be planned with it; Why says why not.
	Usable bool
	Why    string
}

// point is l(b) at one batch size.
type point struct {
	rows      int
	mean      float64 // microseconds
	deviation float64 // of executions, relative
	err       float64 // of the mean, relative standard error
	// hope is the mean if only what is fresh counted; mean where the size is fresh.
	hope     float64
	evidence float64 // in seconds
	count    uint64  // executions of just this size
}

// Estimate is l(b) for one batch size, in microseconds.
type Estimate struct {
	// Mean of executions, and their standard deviation.
	Mean, Deviation float64
	// Bound is the half width of the 95% interval of the mean; where only what is long
	// past says that the size is slow, it reaches down to what is likely otherwise.
	Bound float64
	// Observations counts the executions of just this size.
	Observations uint64
}

// Learn combines what was measured, and what shapes say, as of now: for batches of up to
// maxBatch rows.
func (c *Curve) Learn(now time.Time, shapes []Shape, maxBatch int) Learnt {
	second := max(unix(now), c.newest())
	all := c.gather(second)
	values, shifts := weigh(all)
	known := base(shapes)
	from := known.source()
	l := Learnt{Source: from, shifts: shifts, second: second}
	if b := known; len(b) > 0 || len(values) > 0 {
		if len(b) == 0 {
			b = line(values, false)
		}
		sizes := grid(values, maxBatch)
		believed := combine(b, values, sizes)
		fresh, _ := weigh(onlyFresh(all))
		hoped := believed
		if len(fresh) > 0 && slices.ContainsFunc(values, func(v value) bool { return v.fresh < freshEnough }) {
			hb := known
			if len(hb) == 0 {
				hb = line(fresh, true)
			}
			hoped = combine(hb, fresh, sizes)
		}
		l.points = make([]point, len(sizes))
		for i, rows := range sizes {
			p := point{rows: rows, mean: believed[i].mean, err: believed[i].err, hope: min(believed[i].mean, hoped[i].mean)}
			if j, ok := slices.BinarySearchFunc(values, rows, func(v value, rows int) int { return v.rows - rows }); ok {
				p.evidence = values[j].evidence
				if values[j].fresh >= sure {
					p.hope = p.mean
				}
			}
			p.deviation = deviation(values, rows)
			l.points[i] = p
		}
		for _, e := range all {
			if i, ok := slices.BinarySearchFunc(l.points, e.rows, func(p point, rows int) int { return p.rows - rows }); ok {
				l.points[i].count = e.total
			}
		}
		l.slope(b)
	}
	l.judge(c, all, from, maxBatch)
	return l
}

// grid is every size with a value, and the Batches up to maxBatch.
func grid(values []value, maxBatch int) []int {
	sizes := Batches(maxBatch)
	for _, v := range values {
		sizes = append(sizes, v.rows)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// Batches lists the batch sizes of a profile's grid: all up to 16, then steps of an
// eighth of an octave, and the largest itself.
func Batches(maxBatch int) []int {
	var all []int
	for b := 1; b < maxBatch; b += max(1, 1<<max(0, int(math.Log2(float64(b)))-2)/2) {
		all = append(all, b)
	}
	return append(all, max(1, maxBatch))
}

type combined struct{ mean, err float64 }

// combine conditions the process around the shapes on the values, and makes the means
// monotone: ordinary kriging with the shapes as the mean.
func combine(b base, values []value, sizes []int) []combined {
	if len(values) > mostSizes {
		values = slices.Clone(values)
		slices.SortFunc(values, func(x, y value) int {
			if x.err < y.err {
				return -1
			}
			return 1
		})
		values = values[:mostSizes]
	}
	n := len(values)
	var solved mat.Cholesky
	amplitude := make([]float64, n)
	off := mat.NewVecDense(max(1, n), nil)
	covariance := func(x int, ax float64, y int, ay float64) float64 {
		octaves := math.Abs(math.Log2(float64(x) / float64(y)))
		return ax * ay * (common + (1-common)*math.Exp(-octaves))
	}
	if n > 0 {
		k := mat.NewSymDense(n, nil)
		for i, v := range values {
			var log float64
			log, amplitude[i] = b.at(v.rows)
			off.SetVec(i, v.log-log)
		}
		for i, v := range values {
			for j := range i + 1 {
				k.SetSym(i, j, covariance(v.rows, amplitude[i], values[j].rows, amplitude[j]))
			}
			k.SetSym(i, i, k.At(i, i)+v.err*v.err)
		}
		if !solved.Factorize(k) {
			n = 0 // cannot be: errors are positive, so k is positive definite
		}
	}
	var gain mat.VecDense
	if n > 0 {
		if err := solved.SolveVecTo(&gain, off); err != nil {
			n = 0
		}
	}
	result := make([]combined, len(sizes))
	weights := make([]float64, len(sizes))
	near, solution := mat.NewVecDense(max(1, n), nil), mat.NewVecDense(max(1, n), nil)
	for i, rows := range sizes {
		log, a := b.at(rows)
		variance := a * a
		if n > 0 {
			for j, v := range values {
				near.SetVec(j, covariance(rows, a, v.rows, amplitude[j]))
			}
			log += mat.Dot(near, &gain)
			if err := solved.SolveVecTo(solution, near); err == nil {
				variance -= mat.Dot(near, solution)
			}
		}
		variance = max(variance, leastError*leastError)
		result[i] = combined{math.Exp(log), math.Sqrt(variance)}
		weights[i] = 1 / variance
	}
	monotone(result, weights)
	return result
}

// monotone is isotonic regression by pooling adjacent violators: the nearest
// non-decreasing means, in weighted least squares.
func monotone(points []combined, weights []float64) {
	type block struct {
		mean, weight float64
		count        int
	}
	var blocks []block
	for i, p := range points {
		blocks = append(blocks, block{p.mean, weights[i], 1})
		for n := len(blocks); n > 1 && blocks[n-2].mean > blocks[n-1].mean; n = len(blocks) {
			a, b := blocks[n-2], blocks[n-1]
			w := a.weight + b.weight
			blocks = append(blocks[:n-2], block{(a.mean*a.weight + b.mean*b.weight) / w, w, a.count + b.count})
		}
	}
	i := 0
	for _, b := range blocks {
		for range b.count {
			points[i].mean = b.mean
			i++
		}
	}
}

// deviation is how much executions of a size vary, relative to their mean: as its own do
// where it is executed, else as those of all sizes do, the fresher the more.
func deviation(values []value, rows int) float64 {
	var sum, weights, all, count float64
	for _, v := range values {
		if v.rows == rows && v.count >= enough && v.fresh >= sure {
			return v.deviation
		}
		if v.count > 1 {
			sum += v.fresh * v.deviation * v.deviation
			weights += v.fresh
			all += v.deviation * v.deviation * float64(v.count-1)
			count += float64(v.count - 1)
		}
	}
	switch {
	case weights >= freshEnough:
		return math.Sqrt(sum / weights)
	case count > 0:
		return math.Sqrt(all / count)
	}
	return 0
}

// slope is what a further row takes above the last point.
func (l *Learnt) slope(b base) {
	last := l.points[len(l.points)-1]
	at, _ := b.at(last.rows)
	next, _ := b.at(last.rows + 1)
	l.alpha = math.Exp(next) - math.Exp(at)
	if n := len(l.points); n > 1 {
		before := l.points[n-2]
		l.alpha = max(l.alpha, (last.mean-before.mean)/float64(last.rows-before.rows))
	}
}

// judge says where the curve comes from and whether deadlines may be planned with it: a
// shape or a calibration will do; what was only observed needs two batch sizes, executed
// often enough to know how much they vary, unless the model has only one.
func (l *Learnt) judge(c *Curve, all []evidence, shape Source, maxBatch int) {
	calibrated := len(c.calibrated) > 0
	if !calibrated && !c.serving {
		// A server's own batches are not chosen for measuring: one row alone says nothing of batches.
		for rows, s := range c.served {
			calibrated = calibrated || rows > 1 && s.total >= enough
		}
	}
	if calibrated {
		l.Source = Calibrated
	}
	often, seen := 0, false
	for _, e := range all {
		seen = seen || e.total > 0
		if e.total >= enough {
			often++
			l.Source = Observed
		}
	}
	switch {
	case calibrated || shape != Nothing, often >= 2, often == 1 && maxBatch <= 1:
		l.Usable = true
	case len(all) == 0:
		l.Why = "nothing was observed yet"
	case often == 1:
		l.Why = "only one batch size was observed often enough"
	default:
		l.Why = "no batch size was observed often enough"
	}
	if l.Source == Nothing && seen {
		l.Source = Observed
	}
}

// Empty reports whether nothing is known.
func (l *Learnt) Empty() bool { return len(l.points) == 0 }

// At is l(b) for any batch size: along straight lines between the points.
func (l *Learnt) At(rows int) Estimate {
	p := l.points
	i, found := slices.BinarySearchFunc(p, rows, func(q point, rows int) int { return q.rows - rows })
	estimate := func(mean, hope float64, near point, count uint64) Estimate {
		return Estimate{Mean: mean, Deviation: near.deviation * mean, Bound: max(normal*near.err*mean, mean-hope), Observations: count}
	}
	switch {
	case found:
		return estimate(p[i].mean, p[i].hope, p[i], p[i].count)
	case i == 0:
		return estimate(p[0].mean, p[0].hope, p[0], 0)
	case i == len(p):
		last := p[i-1]
		more := l.alpha * float64(rows-last.rows)
		return estimate(last.mean+more, last.hope+more, last, 0)
	}
	a, b := p[i-1], p[i]
	f := float64(rows-a.rows) / float64(b.rows-a.rows)
	if a.err > b.err {
		b.err = a.err
	}
	return estimate(a.mean+f*(b.mean-a.mean), a.hope+f*(b.hope-a.hope), b, 0)
}

// at is the mean of points at a batch size, along straight lines and flat outside; 0 for
// an empty list.
func at(points []point, rows int) float64 {
	if len(points) == 0 {
		return 0
	}
	i, found := slices.BinarySearchFunc(points, rows, func(q point, rows int) int { return q.rows - rows })
	if found {
		return points[i].mean
	}
	if i == 0 {
		return points[0].mean
	}
	if i == len(points) {
		return points[i-1].mean
	}
	a, b := points[i-1], points[i]
	return a.mean + (b.mean-a.mean)*float64(rows-a.rows)/float64(b.rows-a.rows)
}
