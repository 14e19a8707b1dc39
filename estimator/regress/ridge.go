// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package regress

import (
	"errors"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"
)

// Ridge is Gaussian kernel ridge regression over a subset of the samples as centres (Nystroem): a prediction costs as many exponentials as there
// are centres, whatever it was trained on.
type Ridge struct {
	scaling
	// Gamma is the kernel's: exp(-gamma |x - c|^2 / features).
	Gamma   float64     `json:"gamma"`
	Mean0   float64     `json:"intercept"`
	Centres [][]float64 `json:"centres"`
	Weights []float64   `json:"weights"`
}

// FitRidge fits with at most so many centres, chosen by the seed.
func FitRidge(s *Samples, centres int, gamma, penalty float64, seed uint64) (*Ridge, error) {
	r := &Ridge{scaling: scale(s.X), Gamma: gamma}
	for _, y := range s.Y {
		r.Mean0 += y / float64(len(s.Y))
	}
	random := rand.New(rand.NewPCG(seed, 7))
	order := random.Perm(len(s.X))
	for _, i := range order[:min(centres, len(order))] {
		c := make([]float64, len(s.Names))
		for j := range c {
			c[j] = round(r.at(s.X[i], j))
		}
		r.Centres = append(r.Centres, c)
	}
	m := len(r.Centres)
	normal := mat.NewSymDense(m, nil)
	right := mat.NewVecDense(m, nil)
	k := make([]float64, m)
	for _, i := range order[:min(20000, len(order))] {
		r.kernel(s.X[i], k)
		for a := range m {
			right.SetVec(a, right.AtVec(a)+k[a]*(s.Y[i]-r.Mean0))
			for b := a; b < m; b++ {
				normal.SetSym(a, b, normal.At(a, b)+k[a]*k[b])
			}
		}
	}
	n := float64(min(20000, len(order)))
	for a := range m {
		for b := a; b < m; b++ {
			d := 0.0
			for j := range r.Centres[a] {
				d += (r.Centres[a][j] - r.Centres[b][j]) * (r.Centres[a][j] - r.Centres[b][j])
			}
			normal.SetSym(a, b, normal.At(a, b)+penalty*n/100*math.Exp(-r.Gamma*d/float64(len(s.Names))))
		}
		normal.SetSym(a, a, normal.At(a, a)+1e-6*n)
	}
	var solver mat.Cholesky
	if !solver.Factorize(normal) {
		return nil, errors.New("regress: kernel matrix is not positive definite; use a larger penalty")
	}
	var w mat.VecDense
	if err := solver.SolveVecTo(&w, right); err != nil {
		return nil, err
	}
	for a := range m {
		r.Weights = append(r.Weights, w.AtVec(a))
	}
	return r, nil
}

// kernel writes the kernel of a row with every centre.
func (r *Ridge) kernel(row, into []float64) {
	var space [mostFeatures]float64
	x := r.scaled(row, space[:0])
	for a, c := range r.Centres {
		into[a] = math.Exp(-r.Gamma / float64(len(c)) * distance(x, c))
	}
}

// mostFeatures is how many features a prediction has room for without allocating.
const mostFeatures = 32

func (r *Ridge) scaled(row, into []float64) []float64 {
	for j := range row {
		into = append(into, r.at(row, j))
	}
	return into
}

func distance(a, b []float64) float64 {
	b = b[:len(a)]
	d := 0.0
	for j, v := range a {
		e := v - b[j]
		d += e * e
	}
	return d
}

// beyond is the exponent from which on a centre has no part in a prediction: e^-36 is below the precision of what the near ones sum up to.
const beyond = 36

// Predict is the model's value at a row of features: far from every centre it is the mean.
func (r *Ridge) Predict(row []float64) float64 {
	var space [mostFeatures]float64
	x := r.scaled(row, space[:0])
	y := r.Mean0
	gamma := r.Gamma / float64(len(x))
	for a, c := range r.Centres {
		if e := gamma * distance(x, c); e < beyond {
			y += r.Weights[a] * math.Exp(-e)
		}
	}
	return y
}

// round keeps five significant digits, so that coefficients are short in a file.
func round(v float64) float64 {
	if v == 0 {
		return 0
	}
	p := math.Pow(10, 4-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*p) / p
}
