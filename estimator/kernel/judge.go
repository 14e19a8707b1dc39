// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/regress"
)

// ReadAll reads GPU/kernels.csv of every GPU type in a file system (estimator/data).
func ReadAll(fsys fs.FS) ([]Measurement, error) {
	names, err := fs.Glob(fsys, "*/kernels.csv")
	if err != nil {
		return nil, err
	}
	var all []Measurement
	for _, name := range names {
		g, err := gpu.Find(path.Dir(name))
		if err != nil {
			return nil, fmt.Errorf("kernel: %s: %w", name, err)
		}
		f, err := fsys.Open(name)
		if err != nil {
			return nil, err
		}
		some, err := ReadMeasurements(f, &g)
		_ = f.Close() // it was only read
		if err != nil {
			return nil, fmt.Errorf("kernel: %s: %w", name, err)
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, errors.New("kernel: no GPU/kernels.csv there")
	}
	return all, nil
}

// Errors are relative errors of predicted times, by GPU type.
type Errors map[string][]float64

// Quantile of the errors of all GPU types pooled.
func (e Errors) Quantile(q float64) float64 {
	return regress.Quantile(slices.Concat(slices.Collect(maps.Values(e))...), q)
}

// Worst is the GPU type with the largest median.
func (e Errors) Worst() (name string, median float64) {
	for _, n := range slices.Sorted(maps.Keys(e)) {
		if m := regress.Quantile(e[n], .5); m > median {
			name, median = n, m
		}
	}
	return name, median
}

func (e Errors) String() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(e)) {
		fmt.Fprintf(&b, "%s: median %.1f%%, 90th percentile %.1f%% of %d kernels\n", n, 100*regress.Quantile(e[n], .5), 100*regress.Quantile(e[n], .9), len(e[n]))
	}
	fmt.Fprintf(&b, "pooled: median %.1f%%, 90th percentile %.1f%%", 100*e.Quantile(.5), 100*e.Quantile(.9))
	return b.String()
}

// LeaveOut trains on what is steady of the GPU types that are not left out, and judges the fit on all that was measured on those that are.
func LeaveOut(all []Measurement, left func(gpuName string) bool, seed uint64) (Errors, error) {
	var train, judge []Measurement
	for _, m := range all {
		if left(m.GPU.Name) {
			judge = append(judge, m)
		} else {
			train = append(train, m)
		}
	}
	if len(train) == 0 || len(judge) == 0 {
		return nil, fmt.Errorf("kernel: %d measurements to train on and %d left out: both must be there", len(train), len(judge))
	}
	train, _ = Steady(train)
	model, err := Train(train, seed)
	if err != nil {
		return nil, err
	}
	errors := Errors{}
	var row []float64
	for i := range judge {
		m := &judge[i]
		b := Roofline(&m.Kernel, m.GPU, 1, 1)
		row = make([]float64, 0, 16)
		predicted := b.Seconds * model.Correction(&m.Kernel, m.GPU, &b, row)
		errors[m.GPU.Name] = append(errors[m.GPU.Name], math.Abs(predicted/m.Seconds-1))
	}
	return errors, nil
}

// LeftOut are the median and the 90th percentile of the error, in units of the logarithm, of each kind of kernel on groups that were left out.
func (m *Model) LeftOut() map[string][2]float64 {
	out := map[string][2]float64{}
	for _, p := range m.stacks() {
		if s := *p.stack; s != nil {
			out[p.name] = [2]float64{s.Median, s.P90}
		}
	}
	return out
}
