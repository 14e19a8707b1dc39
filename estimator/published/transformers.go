// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package published

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
)

// Transformer is a whole transformer that was timed, with what it was timed on.
type Transformer struct {
	estimator.Sample
	Sheet gpu.Sheet
}

// Transformers are the samples of transformers.csv: whole models in PyTorch, which no fit has seen.
func Transformers(fsys fs.FS) ([]Transformer, error) {
	f, err := fsys.Open("transformers.csv")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, err
	}
	s := newSampler(fsys, "other", lower.Eager(), kernel.FP32)
	var all []Transformer
	for i, row := range rows[1:] {
		sheet, err1 := gpu.Find(row[0])
		batch, err2 := strconv.Atoi(row[3])
		ms, err3 := strconv.ParseFloat(row[4], 64)
		launches, bytes, err4 := s.lower(row[1], batch)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("transformers.csv, line %d: %w", i+2, err)
		}
		all = append(all, Transformer{Sheet: sheet, Sample: estimator.Sample{Model: row[1], Batch: batch, Launches: launches, Bytes: bytes, Share: 1, Seconds: ms * 1e-3}})
	}
	return all, nil
}

// PredictTransformers is what kernels say of whole transformers, in seconds: those of all GPU types for OwnKernels; for SheetOnly a fit anew for each chip,
// without the kernels of all GPU types that have it.
func PredictTransformers(all []Transformer, kernels *kernel.Model, measured []kernel.Measurement, near estimator.Near) ([]float64, error) {
	without := map[string]*kernel.Model{}
	out := make([]float64, len(all))
	for i := range all {
		t := &all[i]
		d := estimator.Device{Sheet: t.Sheet, Kernels: kernels, Runtime: lower.Eager(), Factors: estimator.Priors(lower.Eager())}
		if near == estimator.SheetOnly {
			chip := fmt.Sprint(t.Sheet.Architecture, t.Sheet.SMs)
			if without[chip] == nil {
				var others []kernel.Measurement
				for _, m := range measured {
					if m.GPU.Architecture != t.Sheet.Architecture || m.GPU.SMs != t.Sheet.SMs {
						others = append(others, m)
					}
				}
				others, _ = kernel.Steady(others)
				var err error
				if without[chip], err = kernel.Train(others, 1); err != nil {
					return nil, err
				}
			}
			d.Kernels = without[chip]
		}
		out[i] = estimator.Predict(&d, []estimator.Sample{t.Sample}, d.Factors)[0]
	}
	return out, nil
}

// Coverage holds bounds against what they did not see: the deviations of each group are judged by the bound that all others of the same cell ask for. It gives
// the part of the deviations that are within, and the median bound.
func Coverage(deviations []float64, cells, groups []string) (within, width float64) {
	var widths []float64
	for i, d := range deviations {
		var others []float64
		for j, other := range deviations {
			if cells[j] == cells[i] && groups[j] != groups[i] {
				others = append(others, other)
			}
		}
		bound := estimator.BoundOf(others)
		widths = append(widths, bound)
		if d <= bound {
			within += 1 / float64(len(deviations))
		}
	}
	return within, estimator.Median(widths)
}
