// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package analyze

import (
	"errors"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
	"github.com/conch-serving/conch/merger"
)

// cost predicts times with the estimator, on a whole GPU of that type.
func cost(gpu string) (merger.Cost, error) {
	device, err := estimator.NewDevice(gpu, "")
	if err != nil {
		return nil, err
	}
	return func(m *onnx.Model, rows int) (time.Duration, error) {
		g, err := shape.Compile(m)
		if err != nil {
			return 0, err
		}
		s := estimator.Subject{Name: m.Graph.Name, Path: m.Path, Graph: g}
		e, err := s.Estimate(estimator.Declared{}, estimator.Grid{Batches: []int{rows}, Shares: []int{100}}, device)
		if err != nil {
			return 0, err
		}
		if len(e.Points) != 1 {
			return 0, errors.New("the estimator gave no time")
		}
		return time.Duration(e.Points[0].LatencyUS * float64(time.Microsecond)), nil
	}, nil
}
