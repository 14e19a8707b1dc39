// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
	samples "github.com/conch-serving/conch/estimator/published"
	"github.com/conch-serving/conch/estimator/regress"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
)

// estimatorData is where the measurements are that estimates are judged by.
const estimatorData = "estimator/data"

// estimator says how far off estimates are on what their fit never saw, part by part; --only takes a part's name.
func (b *bench) estimator(ctx context.Context, r *figure.Report) error {
	for _, part := range []struct {
		name string
		run  func(context.Context, *figure.Report) error
	}{
		{"neusight", b.estimatorKernels}, {"shares", b.estimatorShares}, {"uses", b.estimatorUses}, {"zoo", b.estimatorZoo},
		{"model_ms", b.estimatorSpeed}, {"cpu", b.estimatorCPU},
	} {
		if b.only != "" && !strings.Contains(part.name, b.only) {
			continue
		}
		b.say("estimator: " + part.name)
		if err := part.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	r.Emulated = "nothing: published measurements of GPUs, and this machine's CPU"
	return nil
}

// estimatorKernels leaves all A100s out together.
func (b *bench) estimatorKernels(_ context.Context, r *figure.Report) error {
	all, err := kernel.ReadAll(os.DirFS(estimatorData))
	if err != nil {
		return err
	}
	b.say(fmt.Sprintf("estimator.neusight: %d kernels, all A100s left out", len(all)))
	errs, err := kernel.LeaveOut(all, func(name string) bool { return strings.HasPrefix(name, "A100") }, b.seed)
	if err != nil {
		return err
	}
	b.say(errs.String())
	worst, median := errs.Worst()
	r.Add("estimator.neusight.median_error", 100*errs.Quantile(.5), "%", "kernels of A100s, predicted from other GPU types; untuned boosting 16, a roofline with one efficiency 22")
	r.Add("estimator.neusight.p90_error", 100*errs.Quantile(.9), "%", "untuned boosting 65, a roofline with one efficiency 59")
	r.Add("estimator.neusight.worst_gpu_median_error", 100*median, "%", "the worst of those left out: "+worst)
	return nil
}

// shareErrors are those of l(b, p) / l(b, 100) at p up to 50, on curves that slow by 1.3 or more and on the others; latency is the error of l itself.
type shareErrors struct{ slowing, flat, latency []float64 }

func judgeShares(d *estimator.Device, f estimator.Factors, all []estimator.Sample) shareErrors {
	predicted := estimator.Predict(d, all, f)
	type reference struct{ share, measured, predicted float64 }
	key := func(s estimator.Sample) string { return fmt.Sprintf("%s/%d", s.Model, s.Batch) }
	whole, slowest := map[string]reference{}, map[string]float64{}
	for i, s := range all {
		k := key(s)
		if s.Share > whole[k].share {
			whole[k] = reference{s.Share, s.Seconds, predicted[i]}
		}
		slowest[k] = max(slowest[k], s.Seconds)
	}
	var e shareErrors
	for i, s := range all {
		w := whole[key(s)]
		e.latency = append(e.latency, math.Abs(predicted[i]/s.Seconds-1))
		if s.Share > .5 || w.share < .8 {
			continue
		}
		difference := math.Abs((predicted[i]/w.predicted)/(s.Seconds/w.measured) - 1)
		if slowest[key(s)] >= 1.3*w.measured {
			e.slowing = append(e.slowing, difference)
		} else {
			e.flat = append(e.flat, difference)
		}
	}
	return e
}

// estimatorShares fits factors to half of the models of each source, and judges the curves of the others.
func (b *bench) estimatorShares(_ context.Context, r *figure.Report) error {
	fsys := os.DirFS(estimatorData)
	var pooled shareErrors
	for _, source := range []string{"rapp", "igniter", "gpulet2"} {
		rt := lower.TensorRT()
		var all []estimator.Sample
		var err error
		if source == "rapp" {
			rt = lower.Eager()
			all, err = samples.Shares(fsys, "v100", rt)
		} else {
			all, err = samples.SharesTensorRT(fsys, source)
		}
		if err != nil {
			return err
		}
		d, err := estimator.NewDevice("V100", rt.Name)
		if err != nil {
			return err
		}
		fit, judge := samples.Halves(all)
		b.say(fmt.Sprintf("estimator.shares: %s, %d measurements to fit, %d to judge", source, len(fit), len(judge)))
		f, err := estimator.Fit(&d, samples.Thin(fit), estimator.Priors(rt), samples.Prior)
		if err != nil {
			return err
		}
		e := judgeShares(&d, f, judge)
		pooled.slowing, pooled.flat, pooled.latency = append(pooled.slowing, e.slowing...), append(pooled.flat, e.flat...), append(pooled.latency, e.latency...)
		r.Add("estimator.shares."+source+".median_error", 100*estimator.Median(e.slowing), "%", fmt.Sprintf("%d points of curves that slow by 1.3 or more, models that were not fitted", len(e.slowing)))
	}
	r.Add("estimator.shares.median_error", 100*estimator.Median(pooled.slowing), "%", "l(b, p) / l(b, 100) at p up to 50, curves that slow by 1.3 or more, of models that were not fitted")
	r.Add("estimator.shares.p90_error", 100*estimator.P90(pooled.slowing), "%", "")
	r.Add("estimator.shares.flat_median_error", 100*estimator.Median(pooled.flat), "%", "the same of curves that are flat")
	r.Add("estimator.shares.latency_median_error", 100*estimator.Median(pooled.latency), "%", "l(b, p) itself, of models that were not fitted")
	return nil
}

// estimatorUses leaves each of gpulet's models out in turn.
func (b *bench) estimatorUses(_ context.Context, r *figure.Report) error {
	kernels, err := data.Kernels()
	if err != nil {
		return err
	}
	creq, l2, bandwidth, err := samples.Uses(os.DirFS(estimatorData), kernels)
	if err != nil {
		return err
	}
	for _, use := range []struct {
		name string
		all  *regress.Samples
	}{{"creq", creq}, {"l2", l2}, {"bandwidth", bandwidth}} {
		b.say("estimator." + use.name + ": each model left out")
		var errs, mean []float64
		for _, g := range groupsOf(use.all) {
			rest := use.all.Where(func(i int) bool { return use.all.Groups[i] != g })
			stack, err := regress.Fit(rest, samples.UseOptions())
			if err != nil {
				return err
			}
			average := 0.0
			for _, y := range rest.Y {
				average += y / float64(len(rest.Y))
			}
			for i, row := range use.all.X {
				if use.all.Groups[i] == g {
					errs = append(errs, math.Abs(min(max(stack.Predict(row), 0), 1)-use.all.Y[i]))
					mean = append(mean, math.Abs(average-use.all.Y[i]))
				}
			}
		}
		r.Add("estimator."+use.name+".median_abs_error", 100*estimator.Median(errs), "points", "of a hundred; gpulet's utilisation on two GPU types, each model left out of the fit")
		r.Add("estimator."+use.name+".mean_predictor_median_abs_error", 100*estimator.Median(mean), "points", "the same, predicting the mean of the other models")
	}
	return nil
}

func groupsOf(s *regress.Samples) []string {
	var names []string
	seen := map[string]bool{}
	for _, g := range s.Groups {
		if !seen[g] {
			seen[g] = true
			names = append(names, g)
		}
	}
	return names
}

// zooVariant is a way to read the zoo: what it was measured in, and whether its times are points of lines. Its name is part of a figure's.
type zooVariant struct {
	name    string
	runtime lower.Runtime
	lines   bool
}

// zooVariants are those that the zoo chooses among.
func zooVariants() []zooVariant {
	return []zooVariant{
		{"eager_points", lower.Eager(), false}, {"eager_lines", lower.Eager(), true},
		{"tensorflow_points", lower.TensorFlow(), false}, {"tensorflow_lines", lower.TensorFlow(), true},
	}
}

// zooErrors are errors by family, of both GPU types.
type zooErrors map[string][]float64

// zooSet is the zoo read in one way, by GPU type.
type zooSet struct {
	prior   estimator.Factors
	devices []estimator.Device
	samples [][]estimator.Sample
}

func newZooSet(v zooVariant) (*zooSet, error) {
	set := &zooSet{prior: samples.ZooStart(v.runtime)}
	for _, gpuType := range zoo.GPUTypes() {
		d, err := estimator.NewDevice(gpuType, v.runtime.Name)
		if err != nil {
			return nil, err
		}
		all, err := samples.Zoo(os.DirFS(estimatorData), gpuType, v.runtime, v.lines)
		if err != nil {
			return nil, err
		}
		set.devices, set.samples = append(set.devices, d), append(set.samples, all)
	}
	return set, nil
}

// without fits without families, and gives their errors by family and GPU type; without any, the errors of all under "".
func (z *zooSet) without(families ...string) (map[string][][]float64, error) {
	errs := map[string][][]float64{}
	for g, all := range z.samples {
		var fit []estimator.Sample
		judge := map[string][]estimator.Sample{}
		for _, s := range all {
			if f := samples.Family(s.Model); slices.Contains(families, f) {
				judge[f] = append(judge[f], s)
			} else {
				fit = append(fit, s)
			}
		}
		factors, err := estimator.Fit(&z.devices[g], fit, z.prior, samples.Prior)
		if err != nil {
			return nil, err
		}
		if len(families) == 0 {
			judge[""] = all
		}
		for f, some := range judge {
			if errs[f] == nil {
				errs[f] = make([][]float64, len(z.samples))
			}
			errs[f][g] = estimator.Errors(&z.devices[g], some, factors)
		}
	}
	return errs, nil
}

// estimatorZoo leaves each family of the zoo out in turn. How the zoo is read is chosen anew for each family, by what the other families say: the fit without
// two families judges the one of them, and so chooses for the other.
func (b *bench) estimatorZoo(_ context.Context, r *figure.Report) error {
	variants := zooVariants()
	var families []string
	outer := make([]map[string][][]float64, len(variants)) // by variant and family left out
	inner := make([]map[string]zooErrors, len(variants))   // by variant, family left out, and family left out besides
	everything := make([][][]float64, len(variants))       // by variant, nothing left out
	for n, v := range variants {
		set, err := newZooSet(v)
		if err != nil {
			return err
		}
		if families == nil {
			for _, s := range set.samples[0] {
				if f := samples.Family(s.Model); !slices.Contains(families, f) {
					families = append(families, f)
				}
			}
		}
		outer[n], inner[n] = map[string][][]float64{}, map[string]zooErrors{}
		for _, f := range families {
			inner[n][f] = zooErrors{}
		}
		for i, f := range families {
			outside, err := set.without(f)
			if err != nil {
				return err
			}
			outer[n][f] = outside[f]
			for _, other := range families[i+1:] {
				outsideBoth, err := set.without(f, other)
				if err != nil {
					return err
				}
				inner[n][f][other], inner[n][other][f] = slices.Concat(outsideBoth[other]...), slices.Concat(outsideBoth[f]...)
			}
		}
		seen, err := set.without()
		if err != nil {
			return err
		}
		everything[n] = seen[""]
		pooled := []float64{}
		for _, f := range families {
			pooled = append(pooled, slices.Concat(outer[n][f]...)...)
		}
		r.Add("estimator.zoo."+v.name+".median_error", 100*estimator.Median(pooled), "%", "the zoo read in this one way: each family left out, nothing chosen")
	}
	var pooled, fitted []float64
	byGPU := make([][]float64, len(zoo.GPUTypes()))
	chosen := make([]int, len(variants))
	for _, f := range families {
		best, least := 0, math.Inf(1)
		for n := range variants {
			var errs []float64
			for _, e := range inner[n][f] {
				errs = append(errs, e...)
			}
			if m := estimator.Median(errs); m < least {
				best, least = n, m
			}
		}
		b.say(fmt.Sprintf("estimator.zoo: %s left out: the others choose %s (median %.1f%% among them), which is %.1f%% off on it", f, variants[best].name, 100*least, 100*estimator.Median(slices.Concat(outer[best][f]...))))
		chosen[best]++
		for g, e := range outer[best][f] {
			byGPU[g], pooled = append(byGPU[g], e...), append(pooled, e...)
		}
	}
	most := slices.Index(chosen, slices.Max(chosen))
	fitted = slices.Concat(everything[most]...)
	for g, gpuType := range zoo.GPUTypes() {
		r.Add("estimator.zoo."+gpuType+".median_error", 100*estimator.Median(byGPU[g]), "%", fmt.Sprintf("%d models of Symphony's tables 3 and 4 at batches 1 to 32, each family left out of the fit and of the choice how to read the tables", len(byGPU[g])/6))
	}
	r.Add("estimator.zoo.median_error", 100*estimator.Median(pooled), "%", "beta + alpha b of published models, each family left out of the fit, and of the choice how to read the tables; NASNet, SSD and BERT are not among them")
	r.Add("estimator.zoo.p90_error", 100*estimator.P90(pooled), "%", "")
	r.Add("estimator.zoo.fitted_median_error", 100*estimator.Median(fitted), "%", "what is left where nothing is left out, read as "+variants[most].name+": how far the published numbers are from what these factors can say at all")
	return nil
}

// estimatorSpeed times whole estimates: six batches by ten shares of the largest graphs, and of a file of 436 MB.
func (b *bench) estimatorSpeed(_ context.Context, r *figure.Report) error {
	d, err := estimator.NewDevice("A100", "")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(estimatorData, "graphs", "*", "*.onnx.gz"))
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "conch-estimate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	slowest, name := 0.0, ""
	var all []float64
	for _, file := range files {
		path := filepath.Join(directory, strings.TrimSuffix(filepath.Base(file), ".gz"))
		if err := data.Unpack(file, path); err != nil {
			return err
		}
		ms, err := timeEstimate(path, d)
		if err != nil {
			return err
		}
		all = append(all, ms)
		if ms > slowest {
			slowest, name = ms, filepath.Base(path)
		}
	}
	large := filepath.Join(directory, "large.onnx")
	if err := data.WriteLarge(large, 436<<20); err != nil {
		return err
	}
	ms, err := timeEstimate(large, d)
	if err != nil {
		return err
	}
	r.AddRuns("estimator.model_ms", all, "ms", fmt.Sprintf("%d architectures, from opening the file to l(b, p) at 6 batches and 10 shares, processor time with garbage collection; USHER 31.6; slowest %s", len(all), name))
	r.Add("estimator.large_file_ms", ms, "ms", "the same of a file of 436 MB, weights inside")
	return nil
}

// timeEstimate is the least of several runs in milliseconds of this process's processor time: an estimate has one goroutine, and neither waits nor reads
// what is not in memory, so that on an idle machine it takes as long.
func timeEstimate(path string, d estimator.Device) (float64, error) {
	least := math.Inf(1)
	for range 5 {
		start, err := processorTime()
		if err != nil {
			return 0, err
		}
		s, err := estimator.Open(path)
		if err != nil {
			return 0, err
		}
		if _, err := s.Estimate(estimator.Declared{}, estimator.DefaultGrid(32), d); err != nil {
			return 0, err
		}
		if err := s.Close(); err != nil {
			return 0, err
		}
		end, err := processorTime()
		if err != nil {
			return 0, err
		}
		least = min(least, float64((end-start).Microseconds())/1e3)
	}
	return least, nil
}

// processorTime is what this process has had of the processors, in the kernel's and in its own code.
func processorTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
