// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command train fits the coefficients that the estimator ships with from the measurements under estimator/data, and says how far off they are on
// GPUs that were left out. It is part of neither build nor test:
//
//	go run ./estimator/train
//
// writes estimator/data/kernels.json, uses.json and, from kernels and whole models, factors.json and bounds.json. Equal data give equal files.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/estimator/published"
	"github.com/conch-serving/conch/estimator/regress"
)

func main() {
	log.SetFlags(0)
	directory := flag.String("data", "estimator/data", "directory of the data")
	without := flag.String("without", "", "print the error on GPU types whose name starts so, left out together, and write nothing")
	flag.Parse()
	if err := run(*directory, *without); err != nil {
		log.Fatal("train: ", err)
	}
}

func run(directory, without string) error {
	all, err := kernel.ReadAll(os.DirFS(directory))
	if err != nil {
		return err
	}
	if without != "" {
		report, err := kernel.LeaveOut(all, func(name string) bool { return strings.HasPrefix(name, without) }, 1)
		if err != nil {
			return err
		}
		fmt.Println(report)
		return nil
	}
	steady, left := kernel.Steady(all)
	fmt.Printf("%d of %d kernels are trained on; left out are %s\n", len(steady), len(all), strings.Join(left, "; "))
	m, err := kernel.Train(steady, 1)
	if err != nil {
		return err
	}
	say("products", m.Products)
	say("rows", m.Rows)
	if err := write(filepath.Join(directory, "kernels.json"), m, false); err != nil {
		return err
	}
	uses, err := utilisations(os.DirFS(directory), m)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(directory, "uses.json"), uses, false); err != nil {
		return err
	}
	factors, err := whole(os.DirFS(directory), m)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(directory, "factors.json"), factors, true); err != nil {
		return err
	}
	limits, err := bounds(os.DirFS(directory), m, all)
	if err != nil {
		return err
	}
	return write(filepath.Join(directory, "bounds.json"), limits, true)
}

func say(name string, s *regress.Stack) {
	fmt.Printf("%s: weights of lasso, kernel ridge, boosting %v; each GPU left out: median %.3f, 90th percentile %.3f (of the logarithm)\n", name, s.Weights, s.Median, s.P90)
}

func write(path string, value any, indent bool) error {
	text, err := json.Marshal(value)
	if indent {
		text, err = json.MarshalIndent(value, "", "  ")
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// utilisations fits how much of a GPU a model uses.
func utilisations(fsys fs.FS, kernels *kernel.Model) (*estimator.Uses, error) {
	creq, l2, bandwidth, err := published.Uses(fsys, kernels)
	if err != nil {
		return nil, err
	}
	u := &estimator.Uses{}
	for _, use := range []struct {
		name    string
		samples *regress.Samples
		into    **regress.Stack
	}{{"creq", creq, &u.Creq}, {"l2", l2, &u.L2}, {"bandwidth", bandwidth, &u.Bandwidth}} {
		if *use.into, err = regress.Fit(use.samples, published.UseOptions()); err != nil {
			return nil, err
		}
		say(use.name, *use.into)
	}
	return u, nil
}

// whole fits factors to whole models, and takes the bound from models (or families) that were left out.
func whole(fsys fs.FS, kernels *kernel.Model) (map[string]estimator.Factors, error) {
	out := map[string]estimator.Factors{}
	fit := func(gpuName string, rt lower.Runtime, start estimator.Factors, samples []estimator.Sample, group func(string) string, source string) error {
		sheet, err := gpu.Find(gpuName)
		if err != nil {
			return err
		}
		d := &estimator.Device{Sheet: sheet, Kernels: kernels, Runtime: rt}
		predicted, err := estimator.LeaveOut(d, samples, start, published.Prior, group)
		if err != nil {
			return err
		}
		errs := make([]float64, len(samples))
		for i, s := range samples {
			errs[i] = estimator.Deviation(s.Seconds, predicted[i])
		}
		f, err := estimator.Fit(d, samples, start, published.Prior)
		if err != nil {
			return err
		}
		f.Bound, f.Source = estimator.BoundOf(errs), source
		fmt.Printf("%s/%s: left out: median %.1f%%, 90th percentile %.1f%% of the estimate; bound %.1f%%\n", gpuName, rt.Name, 100*estimator.Median(errs), 100*estimator.P90(errs), 100*f.Bound)
		out[gpuName+"/"+rt.Name] = f
		return nil
	}
	shares, err := published.Shares(fsys, "v100", lower.Eager())
	if err != nil {
		return nil, err
	}
	if err := fit("V100", lower.Eager(), estimator.Priors(lower.Eager()), published.Thin(shares), published.FamilyOf, "36 torchvision models on V100 (RaPP), families left out in turn"); err != nil {
		return nil, err
	}
	for _, gpuName := range []string{"A100", "1080Ti"} {
		samples, err := published.Zoo(fsys, gpuName, published.ZooRuntime(), true)
		if err != nil {
			return nil, err
		}
		if err := fit(gpuName, published.ZooRuntime(), published.ZooStart(published.ZooRuntime()), samples, published.Family, "models of keras.applications on "+gpuName+" (Symphony, tables 3 and 4), families left out in turn"); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// bounds are those of batches of measured kernels, from whole transformers: with all kernels, and with those of each chip left out.
func bounds(fsys fs.FS, kernels *kernel.Model, measured []kernel.Measurement) ([]estimator.Bound, error) {
	all, err := published.Transformers(fsys)
	if err != nil {
		return nil, err
	}
	var out []estimator.Bound
	for _, near := range []estimator.Near{estimator.OwnKernels, estimator.SheetOnly} {
		predicted, err := published.PredictTransformers(all, kernels, measured, near)
		if err != nil {
			return nil, err
		}
		for _, low := range []bool{false, true} {
			var some []float64
			for i := range all {
				if estimator.IsLowPower(&all[i].Sheet) == low {
					some = append(some, estimator.Deviation(all[i].Seconds, predicted[i]))
				}
			}
			b := estimator.Bound{Near: near, LowPower: low, Bound: estimator.BoundOf(some), Median: estimator.Median(some), Samples: len(some)}
			fmt.Printf("transformers, %s, at most 75 W %v: %d, median %.1f%% of the estimate, bound %.1f%%\n", near, low, b.Samples, 100*b.Median, 100*b.Bound)
			out = append(out, b)
		}
	}
	return out, nil
}
