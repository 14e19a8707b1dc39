// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package regress

import (
	"errors"
	"fmt"
	"math"
)

// Samples are rows of features with a target each.
type Samples struct {
	// Names of the features, in the order of a row.
	Names []string
	// X has a row of features per sample.
	X [][]float64
	// Y has a target per sample.
	Y []float64
	// Groups says which samples are left out together when the stack is judged; an empty slice makes folds by position.
	Groups []string
}

// Check says what is wrong with the samples.
func (s *Samples) Check() error {
	switch {
	case len(s.X) == 0:
		return errors.New("regress: no samples")
	case len(s.Y) != len(s.X):
		return fmt.Errorf("regress: %d targets for %d samples", len(s.Y), len(s.X))
	case len(s.Groups) != 0 && len(s.Groups) != len(s.X):
		return fmt.Errorf("regress: %d groups for %d samples", len(s.Groups), len(s.X))
	}
	for i, row := range s.X {
		if len(row) != len(s.Names) {
			return fmt.Errorf("regress: sample %d has %d features, named are %d", i, len(row), len(s.Names))
		}
		for j, v := range row {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("regress: sample %d: feature %s is %g", i, s.Names[j], v)
			}
		}
		if math.IsNaN(s.Y[i]) || math.IsInf(s.Y[i], 0) {
			return fmt.Errorf("regress: sample %d: target is %g", i, s.Y[i])
		}
	}
	return nil
}

// Where returns the samples whose index keep accepts. It shares the rows with s.
func (s *Samples) Where(keep func(i int) bool) *Samples {
	out := &Samples{Names: s.Names}
	for i := range s.X {
		if !keep(i) {
			continue
		}
		out.X = append(out.X, s.X[i])
		out.Y = append(out.Y, s.Y[i])
		if len(s.Groups) > 0 {
			out.Groups = append(out.Groups, s.Groups[i])
		}
	}
	return out
}

// scaling brings features to mean 0 and deviation 1.
type scaling struct {
	Mean  []float64 `json:"mean"`
	Scale []float64 `json:"scale"`
}

func scale(x [][]float64) scaling {
	d := len(x[0])
	s := scaling{Mean: make([]float64, d), Scale: make([]float64, d)}
	for _, row := range x {
		for j, v := range row {
			s.Mean[j] += v
		}
	}
	for j := range s.Mean {
		s.Mean[j] /= float64(len(x))
	}
	for _, row := range x {
		for j, v := range row {
			s.Scale[j] += (v - s.Mean[j]) * (v - s.Mean[j])
		}
	}
	for j := range s.Scale {
		s.Scale[j] = math.Sqrt(s.Scale[j] / float64(len(x)))
		if s.Scale[j] < 1e-9 {
			s.Scale[j] = 1 // a constant feature says nothing
		}
	}
	return s
}

// at is feature j of a row, scaled. Values far outside the fitted range are held at five deviations, to limit the extrapolation.
func (s *scaling) at(row []float64, j int) float64 {
	return min(max((row[j]-s.Mean[j])/s.Scale[j], -5), 5)
}
