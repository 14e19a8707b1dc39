// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package interference fits gpulet's linear model of what a co-runner costs (section 4.4) to measured pairs: the slowdown of a model beside another
// is c1 L2a + c2 L2b + c3 Ba + c4 Bb + c5, by the utilisation of L2 and bandwidth of both, each alone on its share. `tritonctl calibrate
// interference` is its command.
package interference

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/mat"

	"github.com/conch-serving/conch/plugins/policy"
)

// Pair is one measurement: a model beside another on one GPU.
type Pair struct {
	// L2 and bandwidth utilisation as fractions of the GPU, of the model that was slowed and of the other, each alone on its share.
	L2Self, L2Other, BandwidthSelf, BandwidthOther float64
	// Slowdown is the latency beside the other over the latency alone.
	Slowdown float64
}

// Fit is a model for one type of GPU with its error.
type Fit struct {
	GPUType                                                  string
	L2Self, L2Other, BandwidthSelf, BandwidthOther, Constant float64
	// Pairs that were fitted, and Judged, which were not.
	Pairs, Judged int
	// Error is the relative error |predicted - measured| / measured of the judged pairs at the quantiles .5, .9 and .95.
	Error [3]float64
	// ErrorOfNone is that of assuming no interference at all (a slowdown of 1).
	ErrorOfNone [3]float64
}

// ErrData is wrapped by what is wrong with the pairs.
var ErrData = errors.New("interference pairs")

// Predict is the slowdown of a pair, never below 1.
func (f Fit) Predict(p Pair) float64 {
	m := policy.Interference{L2Self: f.L2Self, L2Other: f.L2Other, BandwidthSelf: f.BandwidthSelf, BandwidthOther: f.BandwidthOther, Constant: f.Constant}
	return m.Slowdown(policy.Load{L2: p.L2Self, Bandwidth: p.BandwidthSelf}, policy.Load{L2: p.L2Other, Bandwidth: p.BandwidthOther})
}

// Of fits by least squares to seven pairs in ten and judges the fit by the other three, as the paper does; which is which follows from their
// order. It fails with [ErrData] where there are too few pairs, or where they do not tell the coefficients apart.
func Of(gpuType string, pairs []Pair) (Fit, error) {
	const fewest = 20
	if len(pairs) < fewest {
		return Fit{}, fmt.Errorf("%w of %s: %d are too few; measure at least %d, of models that load bandwidth and L2 differently", ErrData, gpuType, len(pairs), fewest)
	}
	var fitted, judged []Pair
	for i, p := range pairs {
		// Spread over the file, whose order often has a meaning.
		if i*7%10 < 7 {
			fitted = append(fitted, p)
		} else {
			judged = append(judged, p)
		}
	}
	design, want := mat.NewDense(len(fitted), 5, nil), mat.NewVecDense(len(fitted), nil)
	for i, p := range fitted {
		design.SetRow(i, []float64{p.L2Self, p.L2Other, p.BandwidthSelf, p.BandwidthOther, 1})
		want.SetVec(i, p.Slowdown)
	}
	var qr mat.QR
	qr.Factorize(design)
	var c mat.VecDense
	if err := qr.SolveVecTo(&c, false, want); err != nil {
		return Fit{}, fmt.Errorf("%w of %s: they do not tell the coefficients apart (%w); measure models that load bandwidth and L2 differently, on different shares", ErrData, gpuType, err)
	}
	f := Fit{
		GPUType: gpuType, L2Self: c.AtVec(0), L2Other: c.AtVec(1), BandwidthSelf: c.AtVec(2), BandwidthOther: c.AtVec(3), Constant: c.AtVec(4),
		Pairs: len(fitted), Judged: len(judged),
	}
	f.Error = quantiles(judged, f.Predict)
	f.ErrorOfNone = quantiles(judged, func(Pair) float64 { return 1 })
	return f, nil
}

func quantiles(pairs []Pair, predict func(Pair) float64) (q [3]float64) {
	errs := make([]float64, len(pairs))
	for i, p := range pairs {
		errs[i] = math.Abs(predict(p)-p.Slowdown) / p.Slowdown
	}
	slices.Sort(errs)
	for i, at := range []float64{.5, .9, .95} {
		q[i] = errs[min(len(errs)-1, int(at*float64(len(errs))))]
	}
	return q
}

// Read reads pairs as CSV with the columns gpu_type, l2_self, l2_other, bandwidth_self, bandwidth_other and slowdown, in any order, by type of
// GPU. Its errors are [ErrData] and name the line.
func Read(r io.Reader) (map[string][]Pair, error) {
	in := csv.NewReader(r)
	in.Comment, in.TrimLeadingSpace = '#', true
	header, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("%w: no header: %w", ErrData, err)
	}
	columns := []string{"gpu_type", "l2_self", "l2_other", "bandwidth_self", "bandwidth_other", "slowdown"}
	at := make([]int, len(columns))
	for i, name := range columns {
		if at[i] = slices.Index(header, name); at[i] < 0 {
			return nil, fmt.Errorf("%w: column %s is missing; there have to be: %s", ErrData, name, strings.Join(columns, ", "))
		}
	}
	all := make(map[string][]Pair)
	for {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrData, err)
		}
		line, _ := in.FieldPos(0)
		var v [5]float64
		for i := range v {
			text := record[at[i+1]]
			if v[i], err = strconv.ParseFloat(text, 64); err != nil || !(v[i] >= 0) || math.IsInf(v[i], 0) {
				return nil, fmt.Errorf("%w: line %d: %s %q is no number of 0 or more", ErrData, line, columns[i+1], text)
			}
			if i < 4 && v[i] > 1.5 {
				return nil, fmt.Errorf("%w: line %d: %s %v is no fraction of the GPU (percents have to be divided by 100)", ErrData, line, columns[i+1], v[i])
			}
		}
		if v[4] == 0 {
			return nil, fmt.Errorf("%w: line %d: a slowdown of 0", ErrData, line)
		}
		all[record[at[0]]] = append(all[record[at[0]]], Pair{v[0], v[1], v[2], v[3], v[4]})
	}
}
