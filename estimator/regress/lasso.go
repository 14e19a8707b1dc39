// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package regress

import "math"

// Lasso is a linear model whose coefficients were shrunk by their absolute values.
type Lasso struct {
	scaling
	Intercept    float64   `json:"intercept"`
	Coefficients []float64 `json:"coefficients"`
}

// FitLasso minimises the mean squared error plus penalty times the sum of absolute coefficients of scaled features, by coordinate descent.
func FitLasso(s *Samples, penalty float64) *Lasso {
	n, d := len(s.X), len(s.Names)
	l := &Lasso{scaling: scale(s.X), Coefficients: make([]float64, d)}
	columns := make([][]float64, d)
	squares := make([]float64, d)
	for j := range columns {
		columns[j] = make([]float64, n)
		for i, row := range s.X {
			v := l.at(row, j)
			columns[j][i] = v
			squares[j] += v * v
		}
	}
	residual := append([]float64(nil), s.Y...)
	shift := func() {
		mean := 0.0
		for _, r := range residual {
			mean += r
		}
		mean /= float64(n)
		l.Intercept += mean
		for i := range residual {
			residual[i] -= mean
		}
	}
	for range 200 {
		shift()
		moved := 0.0
		for j, column := range columns {
			if squares[j] == 0 {
				continue
			}
			dot := 0.0
			for i, v := range column {
				dot += v * residual[i]
			}
			old := l.Coefficients[j]
			next := soft(dot+old*squares[j], penalty*float64(n)) / squares[j]
			if step := next - old; step != 0 {
				for i, v := range column {
					residual[i] -= step * v
				}
				l.Coefficients[j] = next
				moved = max(moved, math.Abs(step))
			}
		}
		if moved < 1e-5 {
			break
		}
	}
	return l
}

func soft(v, by float64) float64 {
	switch {
	case v > by:
		return v - by
	case v < -by:
		return v + by
	}
	return 0
}

// Predict is the model's value at a row of features.
func (l *Lasso) Predict(row []float64) float64 {
	y := l.Intercept
	for j, c := range l.Coefficients {
		if c != 0 {
			y += c * l.at(row, j)
		}
	}
	return y
}
