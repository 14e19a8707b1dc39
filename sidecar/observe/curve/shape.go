// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import (
	"math"
	"slices"
)

// Shape is what is known of l(b) before it is measured.
type Shape struct {
	Source Source
	// Points by rows, ascending; at least one.
	Points []ShapePoint
}

// ShapePoint is l(b) at one batch size: microseconds, and the relative standard error.
type ShapePoint struct {
	Rows         int
	Microseconds float64
	Bound        float64
}

// Source says where most of what is known of a curve comes from, the strongest last.
type Source int

// Sources.
const (
	Nothing Source = iota
	Declared
	Estimated
	Calibrated
	Observed
)

const (
	// leastBound is the smallest relative standard error that a shape may claim.
	leastBound = .01
	// fitBound is the relative standard error of a line through the cells of several
	// sizes, loneBound that of one through a single size.
	fitBound, loneBound = .15, .3
	// leastMicroseconds is the least that an execution takes: a line that is fitted or
	// declared may cross 0, where a logarithm is none.
	leastMicroseconds = .1
)

// at is the logarithm of l(b), and its standard error: along straight lines between
// points, on the slope of the last two above them, and below the first in proportion
// or on the slope of the first two, whichever is more. Errors grow with the octaves
// from the nearest point.
func (s *Shape) at(rows int) (log, bound float64) {
	p := s.Points
	i, found := slices.BinarySearchFunc(p, rows, func(q ShapePoint, rows int) int { return q.Rows - rows })
	slope := func(a, b ShapePoint) float64 {
		return max(0, (b.Microseconds-a.Microseconds)/float64(b.Rows-a.Rows))
	}
	b := float64(rows)
	var us float64
	switch {
	case found:
		return math.Log(max(leastMicroseconds, p[i].Microseconds)), max(leastBound, p[i].Bound)
	case i == 0:
		us = p[0].Microseconds * b / float64(p[0].Rows)
		if len(p) > 1 {
			us = max(us, p[0].Microseconds-slope(p[0], p[1])*(float64(p[0].Rows)-b))
		}
		bound = p[0].Bound * (1 + math.Log2(float64(p[0].Rows)/b))
	case i == len(p):
		last := p[i-1]
		us = last.Microseconds * b / float64(last.Rows)
		if i > 1 {
			us = last.Microseconds + slope(p[i-2], last)*(b-float64(last.Rows))
		}
		bound = last.Bound * (1 + math.Log2(b/float64(last.Rows)))
	default:
		f := (b - float64(p[i-1].Rows)) / float64(p[i].Rows-p[i-1].Rows)
		us = p[i-1].Microseconds + f*(p[i].Microseconds-p[i-1].Microseconds)
		bound = max(p[i-1].Bound, p[i].Bound)
	}
	return math.Log(max(leastMicroseconds, us)), max(leastBound, bound)
}

// base is the average of several shapes by the inverse squares of their bounds. Where
// they differ by more than these allow, its bound is as much wider.
type base []Shape

func (b base) at(rows int) (log, bound float64) {
	var sum, weights float64
	for i := range b {
		l, e := b[i].at(rows)
		sum += l / (e * e)
		weights += 1 / (e * e)
	}
	log = sum / weights
	spread := 0.0
	for i := range b {
		l, e := b[i].at(rows)
		spread += (l - log) * (l - log) / (e * e)
	}
	return log, math.Sqrt((1 + spread) / weights)
}

func (b base) source() (s Source) {
	for i := range b {
		s = max(s, b[i].Source)
	}
	return s
}

// line fits l(b) = alpha b + beta, neither negative, to sizes by least squares of the
// relative error, weighted by their evidence; sizes that lie off the line count less in
// a second and a third round. Of one size nothing says that larger batches cost less a
// row, or, if flat, that they cost more.
func line(values []value, flat bool) base {
	if len(values) == 0 {
		return nil
	}
	bound := fitBound
	if len(values) == 1 {
		bound = loneBound
	}
	alpha, beta := 0.0, 0.0
	doubt := make([]float64, len(values))
	for range 3 {
		var w, x, y, xx, xy float64
		for i, v := range values {
			l, b := math.Exp(v.log), float64(v.rows)
			weight := max(v.evidence, 1e-6) / (l * l) / (1 + doubt[i])
			w, x, y, xx, xy = w+weight, x+weight*b, y+weight*l, xx+weight*b*b, xy+weight*b*l
		}
		alpha, beta = 0, y/w
		if det := w*xx - x*x; det > 1e-9*w*xx {
			alpha = (w*xy - x*y) / det
			beta = (y - alpha*x) / w
			if beta < 0 {
				alpha, beta = xy/xx, 0
			}
			if alpha < 0 {
				alpha, beta = 0, y/w
			}
		} else if !flat {
			alpha, beta = xy/xx, 0
		}
		for i, v := range values {
			off := (math.Exp(v.log) - alpha*float64(v.rows) - beta) / math.Exp(v.log) / fitBound
			doubt[i] = off * off
		}
	}
	return base{{Points: []ShapePoint{{1, alpha + beta, bound}, {1024, 1024*alpha + beta, bound}}}}
}
