// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
	samples "github.com/conch-serving/conch/estimator/published"
	"github.com/conch-serving/conch/internal/figure"
)

// estimatorWhole says how far off estimates of whole models are that no fit has seen, and how often their bounds hold; --only takes a part's name.
func (b *bench) estimatorWhole(ctx context.Context, r *figure.Report) error {
	for _, part := range []struct {
		name string
		run  func(context.Context, *figure.Report) error
	}{{"transformers", b.estimatorTransformers}, {"unseen", b.estimatorUnseen}, {"bounds", b.estimatorBounds}} {
		if b.only != "" && !strings.Contains(part.name, b.only) {
			continue
		}
		b.say("estimator-whole: " + part.name)
		if err := part.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	r.Emulated = "nothing: published measurements of GPUs"
	return nil
}

// estimatorTransformers judges kernels by whole transformers, which no fit has seen: with the kernels of all GPU types, and without those of the chip.
// The bound of each is what the others ask for: other models, and other chips.
func (b *bench) estimatorTransformers(_ context.Context, r *figure.Report) error {
	fsys := os.DirFS(estimatorData)
	all, err := samples.Transformers(fsys)
	if err != nil {
		return err
	}
	kernels, err := data.Kernels()
	if err != nil {
		return err
	}
	measured, err := kernel.ReadAll(fsys)
	if err != nil {
		return err
	}
	for _, near := range []estimator.Near{estimator.OwnKernels, estimator.SheetOnly} {
		predicted, err := samples.PredictTransformers(all, kernels, measured, near)
		if err != nil {
			return err
		}
		name, note := "estimator.transformers", fmt.Sprintf("%d whole transformers in PyTorch on seven GPU types (NeuSight), none of which a fit has seen", len(all))
		if near == estimator.SheetOnly {
			name, note = name+".sheet_only", "the same without the kernels of the chip: from a data sheet alone"
		}
		var errs, deviations []float64
		var cells, groups []string
		byGPU := map[string][]float64{}
		for i := range all {
			t := &all[i]
			errs = append(errs, math.Abs(predicted[i]/t.Seconds-1))
			card, _, _ := strings.Cut(t.Sheet.Name, "-") // a name of a figure has no dash
			byGPU[card] = append(byGPU[card], errs[i])
			deviations = append(deviations, estimator.Deviation(t.Seconds, predicted[i]))
			cells = append(cells, fmt.Sprint(estimator.IsLowPower(&t.Sheet)))
			group := t.Model
			if near == estimator.SheetOnly {
				group = t.Sheet.Name
			}
			groups = append(groups, group)
		}
		r.Add(name+".median_error", 100*estimator.Median(errs), "%", note)
		r.Add(name+".p90_error", 100*estimator.P90(errs), "%", "")
		for _, gpuName := range []string{"H100", "A100", "V100", "P100", "T4", "L4", "P4"} {
			r.Add(name+"."+gpuName+".median_error", 100*estimator.Median(byGPU[gpuName]), "%", fmt.Sprintf("%d of them", len(byGPU[gpuName])))
		}
		addCoverage(r, name, deviations, cells, groups)
	}
	return nil
}

// addCoverage says how often bounds hold that come from other groups, and how wide they are.
func addCoverage(r *figure.Report, name string, deviations []float64, cells, groups []string) {
	within, width := samples.Coverage(deviations, cells, groups)
	r.Add(name+".within_bound", 100*within, "%", "how many are within the bound that the others ask for")
	r.Add(name+".median_bound", 100*width, "%", "of the estimate")
	r.Add(name+".median_deviation", 100*estimator.Median(deviations), "%", "measured from estimated, relative to the estimate: what the bound has to cover")
}

// estimatorUnseen judges what ships by models of RaPP's measurements that no fit has seen, and its bound by them.
func (b *bench) estimatorUnseen(_ context.Context, r *figure.Report) error {
	all, err := samples.Unseen(os.DirFS(estimatorData))
	if err != nil {
		return err
	}
	d, err := estimator.NewDevice("V100", "eager")
	if err != nil {
		return err
	}
	predicted := estimator.Predict(&d, all, d.Factors)
	var errs, deviations []float64
	within := 0.0
	for i, s := range all {
		errs = append(errs, math.Abs(predicted[i]/s.Seconds-1))
		deviations = append(deviations, estimator.Deviation(s.Seconds, predicted[i]))
		if deviations[i] <= d.Factors.Bound {
			within += 1 / float64(len(all))
		}
	}
	r.Add("estimator.unseen.median_error", 100*estimator.Median(errs), "%", fmt.Sprintf("%d batches of models of torchvision on V100 (RaPP) that no fit has seen", len(all)))
	r.Add("estimator.unseen.p90_error", 100*estimator.P90(errs), "%", "")
	r.Add("estimator.unseen.within_bound", 100*within, "%", "how many are within the bound that ships")
	r.Add("estimator.unseen.bound", 100*d.Factors.Bound, "%", "of the estimate")
	r.Add("estimator.unseen.median_deviation", 100*estimator.Median(deviations), "%", "measured from estimated, relative to the estimate")
	return nil
}

// estimatorBounds holds the bounds of factors against families that they did not see.
func (b *bench) estimatorBounds(_ context.Context, r *figure.Report) error {
	fsys := os.DirFS(estimatorData)
	for _, gpuName := range []string{"V100", "A100", "1080Ti"} {
		rt, start, group := samples.ZooRuntime(), samples.ZooStart(samples.ZooRuntime()), samples.Family
		read := func() ([]estimator.Sample, error) { return samples.Zoo(fsys, gpuName, rt, true) }
		if gpuName == "V100" {
			rt, start, group = lower.Eager(), estimator.Priors(lower.Eager()), samples.FamilyOf
			read = func() ([]estimator.Sample, error) {
				shares, err := samples.Shares(fsys, "v100", rt)
				return samples.Thin(shares), err
			}
		}
		all, err := read()
		if err != nil {
			return err
		}
		sheet, err := gpu.Find(gpuName)
		if err != nil {
			return err
		}
		kernels, err := data.Kernels()
		if err != nil {
			return err
		}
		b.say("estimator.bounds: " + gpuName + ", each family left out")
		predicted, err := estimator.LeaveOut(&estimator.Device{Sheet: sheet, Kernels: kernels, Runtime: rt}, all, start, samples.Prior, group)
		if err != nil {
			return err
		}
		var deviations []float64
		var groups []string
		for i, s := range all {
			deviations, groups = append(deviations, estimator.Deviation(s.Seconds, predicted[i])), append(groups, group(s.Model))
		}
		addCoverage(r, "estimator.bounds."+gpuName, deviations, make([]string, len(all)), groups)
	}
	return nil
}
