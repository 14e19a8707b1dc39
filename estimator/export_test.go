// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"slices"

	"github.com/conch-serving/conch/estimator/arena"
	"github.com/conch-serving/conch/estimator/lower"
)

// CommonBlock is the size of the block that ONNX Runtime's processor kernels keep the values of a batch in.
func (s *Subject) CommonBlock(batch int) (int64, error) {
	shapes, _, err := FeedShapes(s.Graph, Declared{}, batch)
	if err != nil {
		return 0, err
	}
	r, err := s.Graph.Infer(shapes)
	if err != nil {
		return 0, err
	}
	events, _ := newPlanner(r, lower.ONNXRuntime(), true).events()
	return arena.Common(events), nil
}

// Line is the straight line through times at batches.
func Line(batches, seconds []float64) []float64 {
	out := slices.Clone(seconds)
	line(batches, out)
	return out
}
