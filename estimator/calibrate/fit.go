// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibrate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
)

// CPU is the sheet of a processor before anything was measured: the roofs come from the measurements.
func CPU(memory float64) gpu.Sheet {
	return gpu.Sheet{Name: "CPU", Architecture: kernel.CPU, SMs: 1, Cores: 1, Threads: 2048, BoostMHz: 1, Memory: memory, L2: 2e6, Source: "calibrated"}
}

// Samples joins results with the kernels of their models.
func Samples(results []Result, models []Model, rt lower.Runtime) ([]estimator.Sample, error) {
	byName := map[string]Model{}
	for _, m := range models {
		byName[m.Name] = m
	}
	graphs := map[string]*shape.Graph{}
	var all []estimator.Sample
	for _, r := range results {
		m, ok := byName[r.Model]
		if !ok {
			continue
		}
		g := graphs[r.Model]
		if g == nil {
			file, err := m.Build()
			if err != nil {
				return nil, err
			}
			model, err := onnx.Read(bytes.NewReader(file), int64(len(file)), m.Name+".onnx", onnx.DefaultLimits())
			if err != nil {
				return nil, err
			}
			if g, err = shape.Compile(model); err != nil {
				return nil, err
			}
			graphs[r.Model] = g
		}
		dims := append([]int64{int64(r.Batch)}, m.Inputs...)
		inferred, err := g.Infer(map[string][]int64{Input: dims})
		if err != nil {
			return nil, err
		}
		in := shape.Tensor{Type: onnx.Float, Dims: dims}
		all = append(all, estimator.Sample{
			Model: r.Model, Batch: r.Batch, Launches: lower.Lower(inferred, lower.Options{Runtime: rt}), Bytes: in.Bytes(), Share: float64(cmp.Or(r.Share, 100)) / 100, Seconds: r.Seconds,
		})
	}
	return all, nil
}

// Fit makes a bundle of the results of [Micros]. With a sheet of a CPU, or one without roofs, the roofs are the best rates that were measured.
func Fit(state *State, sheet gpu.Sheet, rt lower.Runtime) (*estimator.Bundle, error) {
	if sheet.Architecture == kernel.CPU {
		rt = rt.OnProcessor()
	}
	samples, err := Samples(state.Results, Micros(), rt)
	if err != nil {
		return nil, err
	}
	var parts []estimator.Sample
	samples, parts = split(samples)
	f, err := overheads(samples, rt)
	if err != nil {
		return nil, err
	}
	var measured []estimator.Sample
	for _, s := range samples {
		s.Seconds -= f.Fixed + f.Copy*s.Bytes + f.Floor*float64(len(s.Launches))
		if s.Model != "copy" && s.Seconds > 1e-6 && len(s.Launches) > 0 && s.Launches[0].Bytes() > 4096 {
			measured = append(measured, s)
		}
	}
	if len(measured) < 20 {
		return nil, fmt.Errorf("calibrate: only %d results say something beside overhead: measure more of the micro-models", len(measured))
	}
	if sheet.FP32 == 0 {
		for _, s := range measured {
			flops, moved := 0.0, 0.0
			for _, l := range s.Launches {
				flops += l.FLOPs
				moved += l.Bytes()
			}
			sheet.FP32 = max(sheet.FP32, flops/s.Seconds)
			sheet.Bandwidth = max(sheet.Bandwidth, moved/s.Seconds)
		}
		sheet.Watts = 10 * sheet.FP32 / 1e12
	}
	var all []kernel.Measurement
	for _, s := range measured {
		bound := 0.0
		for _, l := range s.Launches {
			b := kernel.Roofline(&l.Kernel, &sheet, 1, 1)
			bound += b.Seconds
		}
		seen := map[kernel.Kernel]bool{}
		for _, l := range s.Launches {
			if seen[l.Kernel] {
				continue
			}
			seen[l.Kernel] = true
			b := kernel.Roofline(&l.Kernel, &sheet, 1, 1)
			// Kernels of one model share what it took beyond the roofs.
			all = append(all, kernel.Measurement{Kernel: l.Kernel, GPU: &sheet, Seconds: b.Seconds * s.Seconds / bound, Group: s.Model})
		}
	}
	model, err := kernel.Train(all, 1)
	if err != nil {
		return nil, err
	}
	bundle := &estimator.Bundle{Version: 1, Sheet: sheet, Runtime: rt, Kernels: model, Factors: f, Server: state.Server, Measurements: len(samples)}
	bundle.Median, bundle.P90 = leftOut(model)
	if err := saturate(bundle, parts); err != nil {
		return nil, err
	}
	bundle.Factors.Bound = bundle.P90
	bundle.Factors.Source = fmt.Sprintf("calibrated on %s: %d measurements of micro-models, error of the kinds of kernels left out in turn", state.Server, len(samples))
	return bundle, nil
}

// split divides samples into those with the whole device and those with a part of it.
func split(all []estimator.Sample) (whole, parts []estimator.Sample) {
	for _, s := range all {
		if s.Share >= 1 {
			whole = append(whole, s)
		} else {
			parts = append(parts, s)
		}
	}
	return whole, parts
}

// saturate finds the share of the device that draws its whole bandwidth: the one with the least median error of what was measured at parts of the device.
// Without such measurements it stays what it was.
func saturate(b *estimator.Bundle, parts []estimator.Sample) error {
	if len(parts) == 0 {
		return nil
	}
	d, err := b.Device()
	if err != nil {
		return err
	}
	best, least := b.Factors.Saturation, math.Inf(1)
	for s := .1; s <= 1.001; s += .05 {
		f := b.Factors
		f.Saturation = s
		if e := estimator.Median(estimator.Errors(&d, parts, f)); e < least {
			best, least = s, e
		}
	}
	b.Factors.Saturation, b.Shares = best, len(parts)
	return nil
}

// leftOut is the error on micro-models that were left out, the worst of the kinds of kernels that there are.
func leftOut(m *kernel.Model) (median, p90 float64) {
	for _, e := range m.LeftOut() {
		median, p90 = max(median, math.Expm1(e[0])), max(p90, math.Expm1(e[1]))
	}
	return median, p90
}

// overheads are what an execution costs beside its kernels: of a model that computes next to nothing, of thirty-two more operators, of more input.
func overheads(samples []estimator.Sample, rt lower.Runtime) (estimator.Factors, error) {
	find := func(model string, batch int) (estimator.Sample, bool) {
		for _, s := range samples {
			if s.Model == model && s.Batch == batch {
				return s, true
			}
		}
		return estimator.Sample{}, false
	}
	single, ok1 := find("null_1", 1)
	many, ok2 := find("null_33", 1)
	small, ok3 := find("copy", 1)
	large, ok4 := find("copy", 8)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return estimator.Factors{}, errors.New("calibrate: null_1, null_33 and copy are needed first: what an execution costs that computes nothing")
	}
	f := estimator.Priors(rt)
	f.Pointwise, f.Window, f.Grouped, f.Direct, f.Move, f.Saturation = 1, 1, 1, 1, 1, 1
	f.Launch = 1e-7
	f.Floor = max(many.Seconds-single.Seconds, 0)/32 + 1e-8
	f.Fixed = max(single.Seconds-f.Floor, 0)
	f.Copy = max(large.Seconds-small.Seconds, 0) / (large.Bytes - small.Bytes)
	return f, nil
}
