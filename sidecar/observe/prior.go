// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe/curve"
)

// Line is l(b) = Beta + Alpha*b, as an operator declares it. It holds for the whole GPU.
type Line struct{ Alpha, Beta time.Duration }

// declaredBound is the relative standard error of a declared line.
const declaredBound = .1

// Prior is what is known of l(b, p) of one model on one GPU type before it is measured: an
// estimate from its graph. It counts by its error bounds, beside what is declared, and
// yields to what is measured, size by size (see package curve).
type Prior struct {
	Source policy.ProfileSource
	// Points in any order.
	Points []PriorPoint
}

// PriorPoint is l(b, p) at one batch size and one share of the GPU in percent. Bound is
// the relative standard error: .2 where two thirds of such estimates are within a fifth.
type PriorPoint struct {
	Rows    int
	Share   uint32
	Latency time.Duration
	Bound   float64
}

// PriorOf is the prior that a profile is, from the values and error bounds of its points.
func PriorOf(p *policy.Profile) Prior {
	prior := Prior{Source: p.GetSource()}
	for _, q := range p.GetPoints() {
		us, bound := q.GetLatencyUs().GetValue(), q.GetLatencyUs().GetErrorBound()
		prior.Points = append(prior.Points, PriorPoint{
			Rows: int(q.GetBatch()), Share: q.GetThreadPercentage(), Latency: time.Duration(us * float64(time.Microsecond)), Bound: bound / us / 1.96,
		})
	}
	return prior
}

// SetPrior replaces what is known of a model on a GPU type from the prior's source; a prior
// without points takes it away. Only estimates are priors of their own: what is declared
// comes with SetModel, what is calibrated with Calibrated.
func (r *Recorder) SetPrior(name, gpuType string, p Prior) error {
	if p.Source != policy.ProfileSource_PROFILE_SOURCE_ESTIMATED {
		return fmt.Errorf("prior of model %q on %s: its source is %s; only estimates are priors", name, gpuType, sourceName(p.Source))
	}
	for _, q := range p.Points {
		if q.Rows < 1 || q.Share < 1 || q.Share > 100 || q.Latency <= 0 || !(q.Bound > 0) || math.IsInf(q.Bound, 0) {
			return fmt.Errorf("prior of model %q on %s: point of %d rows at %d%%: a latency of %v with an error of %v is not positive and finite, or the share is not 1 to 100",
				name, gpuType, q.Rows, q.Share, q.Latency, q.Bound)
		}
	}
	m := r.model(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.priors++
	if len(p.Points) == 0 {
		delete(m.estimates, gpuType)
		return nil
	}
	points := slices.Clone(p.Points)
	slices.SortFunc(points, func(a, b PriorPoint) int { return cmp.Or(cmp.Compare(a.Share, b.Share), cmp.Compare(a.Rows, b.Rows)) })
	m.estimates[gpuType] = points
	m.curve(class{gpuType, points[len(points)-1].Share})
	return nil
}

// shapes of a class: what is declared, and what is estimated. The model's lock is held.
func (m *model) shapes(c class) []curve.Shape {
	var all []curve.Shape
	if d := m.declared; d != nil && c.share == wholeGPU {
		s := curve.Shape{Source: curve.Declared}
		for _, rows := range slices.Compact([]int{1, max(1, m.maxBatch)}) {
			s.Points = append(s.Points, curve.ShapePoint{Rows: rows, Microseconds: microseconds(d.Beta) + microseconds(d.Alpha)*float64(rows), Bound: declaredBound})
		}
		all = append(all, s)
	}
	if points := m.estimates[c.gpuType]; len(points) > 0 {
		s := curve.Shape{Source: curve.Estimated}
		for _, p := range atShare(points, c.share) {
			s.Points = append(s.Points, curve.ShapePoint{Rows: p.Rows, Microseconds: microseconds(p.Latency), Bound: p.Bound})
		}
		all = append(all, s)
	}
	return all
}

// atShare are the points of the nearest share that there is, with their latencies in
// proportion to 1/p, and wider bounds, where that is another one.
func atShare(points []PriorPoint, share uint32) []PriorPoint {
	share = max(1, share)
	off := func(p PriorPoint) float64 { return math.Abs(math.Log(float64(p.Share) / float64(share))) }
	nearest := slices.MinFunc(points, func(a, b PriorPoint) int { return cmp.Compare(off(a), off(b)) })
	var at []PriorPoint
	for _, p := range points {
		if p.Share != nearest.Share {
			continue
		}
		p.Bound += off(p) / 2
		p.Latency = time.Duration(float64(p.Latency) * float64(p.Share) / float64(share))
		at = append(at, p)
	}
	return at
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
