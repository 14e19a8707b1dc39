// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import "time"

// Occupancy predicts by arithmetic: a stand-in for a trained predictor, in tests and examples. A model's operators take equal times and keep an equal
// share of the GPU busy, and a group takes as long as its longest slice would alone, or as the GPU has work for, whichever is longer. No GPU is
// that simple: nothing measured with it says anything about one.
type Occupancy []Occupant

// Occupant is a model to [Occupancy].
type Occupant struct {
	// Operator is the time of one operator alone with a batch of one, Row that of each further row.
	Operator, Row time.Duration
	// Share of the GPU that an operator keeps busy, above 0 and at most 1.
	Share float64
}

// Latency is that of a group.
func (o Occupancy) Latency(group []Slice) time.Duration {
	var longest time.Duration
	var work float64
	for _, s := range group {
		m := o[s.Model]
		alone := time.Duration(s.End-s.Start) * (m.Operator + time.Duration(max(0, s.Batch-1))*m.Row)
		longest = max(longest, alone)
		work += float64(alone) * m.Share
	}
	return max(longest, time.Duration(work))
}
