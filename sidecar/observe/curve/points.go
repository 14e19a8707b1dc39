// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import (
	"math"

	"github.com/conch-serving/conch/plugins/policy"
)

// Points is the curve as points of the contract. The upper latency is mean plus
// one standard deviation, as in Symphony's own scheduler, and never falls as
// batches grow. Of an estimate the standard error of the mean counts as deviation:
// half of such models are slower than their mean.
func (l *Learnt) Points(share uint32, maxBatch int) []*policy.ProfilePoint {
	batches := Batches(maxBatch)
	points := make([]*policy.ProfilePoint, 0, len(batches))
	upper := 0.0
	for _, b := range batches {
		e := l.At(b)
		if l.Source == Estimated {
			e.Deviation = math.Hypot(e.Deviation, e.Bound/1.96)
		}
		upper = max(upper, e.Mean+e.Deviation)
		points = append(points, &policy.ProfilePoint{
			Batch: uint32(b), ThreadPercentage: share, Observations: e.Observations,
			LatencyUs:      &policy.Estimate{Value: e.Mean, ErrorBound: e.Bound},
			LatencyUpperUs: upper,
		})
	}
	return points
}
