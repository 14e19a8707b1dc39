// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package estimate is `tritonctl estimate`.
package estimate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/tritonctl/estimating"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// ErrRefused is the failure of a sweep in which a model could not be estimated, ErrTooLarge that of a model that does not fit.
var (
	ErrRefused  = errors.New("not every model could be estimated")
	ErrTooLarge = errors.New("does not fit")
)

type options struct {
	*factory.Factory
	gpu, runtime, math, bundle, all, write string
	batches, shares                        []int
	dims                                   map[string]int64
	explain                                bool
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &options{Factory: f}
	c := &cobra.Command{
		Use:   "estimate PATH | --all DIRECTORY",
		Short: "Say what a model needs of a GPU, without running it",
		Long: `estimate reads an ONNX file or a model directory on this machine, and works out
latency per batch and share of a GPU, compute and memory requirement, bandwidth and
L2 utilisation, each with its error bound: before anything is loaded, without a GPU
and without a running conch. What varies in a shape comes from config.pbtxt or --dim.

A model that is no ONNX graph is estimated from the size of its file, and says so.
It exits 1 where a model does not fit the GPU's memory, and where --all meets a model
that it cannot estimate. --write gives a file for profiles: in conch.yaml.`,
		Example: `tritonctl estimate /models/resnet50 --gpu T4
tritonctl estimate model.onnx --gpu A100 --batch 1,8,32 --dim sequence=256 --explain
tritonctl estimate --all /models --gpu L4 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return o.run(args) },
	}
	c.Flags().StringVar(&o.gpu, "gpu", "T4", "GPU type: "+strings.Join(gpu.Names(), ", "))
	c.Flags().StringVar(&o.runtime, "runtime", "", "onnxruntime, tensorrt, eager (PyTorch) or tensorflow; default what config.pbtxt says")
	c.Flags().StringVar(&o.math, "math", "fp32", "arithmetic of FP32 tensors: fp32, or tf32 where the runtime may use tensor cores for them")
	c.Flags().StringVar(&o.bundle, "bundle", "", "bundle of tritonctl calibrate to estimate with, in place of --gpu")
	c.Flags().IntSliceVar(&o.batches, "batch", nil, "batch sizes; default powers of two up to max_batch_size, or to 32")
	c.Flags().IntSliceVar(&o.shares, "shares", nil, "thread percentages; default 10 to 100")
	c.Flags().StringToInt64Var(&o.dims, "dim", nil, "size of a dimension that the model names, such as sequence=256")
	c.Flags().BoolVar(&o.explain, "explain", false, "show the operators that dominate")
	c.Flags().StringVar(&o.all, "all", "", "estimate every model below a directory")
	c.Flags().StringVar(&o.write, "write", "", "write the profile to a .json or .csv file that profiles: of conch.yaml reads")
	return c
}

// result is an estimate, or why there is none.
type result struct {
	Path string `json:"path"`
	*estimator.Estimate
	Error string `json:"error,omitempty"`
}

func (o *options) run(args []string) error {
	if (len(args) == 1) == (o.all != "") {
		return fmt.Errorf("%w: give a path, or a directory with --all", factory.ErrUsage)
	}
	if o.math != "fp32" && o.math != "tf32" {
		return fmt.Errorf("%w: --math is fp32 or tf32, not %q", factory.ErrUsage, o.math)
	}
	path := o.all
	if path == "" {
		path = args[0]
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%w: %w", factory.ErrUsage, err)
	}
	if o.all != "" {
		return o.sweep()
	}
	m, err := estimating.Find(path)
	if err != nil {
		if models, _ := fs.Glob(os.DirFS(path), "*/config.pbtxt"); len(models) > 0 { // the pattern is a good one
			return fmt.Errorf("%w: %s is a model repository; give one of its models, or --all %s", factory.ErrUsage, path, path)
		}
		return err
	}
	m.Strict = true
	e, err := o.estimate(m)
	if err != nil {
		return err
	}
	if o.write != "" {
		if err := estimator.WriteProfile(o.write, e.Profile); err != nil {
			return err
		}
	}
	if err := o.Print(e, func(t *output.Table) { draw(t, e, o.explain) }); err != nil {
		return err
	}
	if !e.Fits {
		return fmt.Errorf("%s %w: it needs %s of the %s's %s", e.Model, ErrTooLarge, bytes(e.Memory.Total()), e.GPUType, bytes(e.MemoryOfGPU))
	}
	return nil
}

func (o *options) device(m *estimating.Model) (estimator.Device, error) {
	if o.bundle != "" {
		b, err := estimator.ReadBundle(o.bundle)
		if err != nil {
			return estimator.Device{}, err
		}
		return b.Device()
	}
	runtime := o.runtime
	if runtime == "" {
		runtime = m.Runtime
	}
	d, err := estimator.NewDevice(o.gpu, runtime)
	if o.math == "tf32" {
		d.Float = kernel.TF32
	}
	return d, err
}

func (o *options) estimate(m *estimating.Model) (*estimator.Estimate, error) {
	d, err := o.device(m)
	if err != nil {
		return nil, err
	}
	grid := m.Grid()
	if o.batches != nil {
		grid.Batches = o.batches
	}
	if o.shares != nil {
		grid.Shares = o.shares
	}
	m.Declared.Dims = o.dims
	return m.On(d, grid)
}

func (o *options) sweep() error {
	models, problems, err := estimating.All(o.all)
	if err != nil {
		return err
	}
	results := []result{}
	refused := false
	for _, m := range models {
		path := m.File
		if m.Directory != "" {
			path = m.Directory
		}
		r := result{Path: path}
		if r.Estimate, err = o.estimate(m); err != nil {
			r.Error, refused = err.Error(), true
		}
		results = append(results, r)
	}
	for path, err := range problems {
		results = append(results, result{Path: path, Error: err.Error()})
		refused = true
	}
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.Path, b.Path) })
	err = o.Print(results, func(t *output.Table) {
		t.Row("MODEL", "GPU", "BATCH", "LATENCY", "BOUND", "MEMORY", "FITS", "NOTE")
		for _, r := range results {
			name, _ := filepath.Rel(o.all, r.Path)
			if r.Error != "" {
				t.Row(name, "", "", "", "", "", "", "refused: "+r.Error)
				continue
			}
			latency, batch := "", ""
			if n := len(r.Points); n > 0 {
				latency, batch = milliseconds(r.Points[n-1].LatencyUS), strconv.FormatUint(uint64(r.Points[n-1].Batch), 10)
			}
			note := ""
			if len(r.Warnings) > 0 {
				note = fmt.Sprintf("%d warnings: %s", len(r.Warnings), r.Warnings[0])
			}
			t.Row(name, r.GPUType, batch, latency, fmt.Sprintf("%.0f%%", 100*r.Bound), bytes(r.Memory.Total()), yes(r.Fits), note)
		}
	})
	if err != nil {
		return err
	}
	if refused {
		return ErrRefused
	}
	return nil
}

func draw(t *output.Table, e *estimator.Estimate, explain bool) {
	t.Line(fmt.Sprintf("%s on %s: %s parameters, %.3g GFLOP and %d kernels at batch %d", e.Model, e.GPUType, count(float64(e.Parameters)), e.FLOPs/1e9, e.Kernels, first(e)))
	fits := "fits"
	if !e.Fits {
		fits = "DOES NOT FIT"
	}
	t.Line(fmt.Sprintf("memory at batch %d: %s = %s weights + %s activations + %s workspace + %s arena + %s context; %s into %s",
		last(e), bytes(e.Memory.Total()), bytes(e.Memory.Parameters), bytes(e.Memory.Activations), bytes(e.Memory.Workspace), bytes(e.Memory.Arena), bytes(e.Memory.Context), fits, bytes(e.MemoryOfGPU)))
	t.Line(fmt.Sprintf("error bound %.0f%% (%s)", 100*e.Bound, e.Basis))
	t.Line("")
	t.Row("BATCH", "SHARE", "LATENCY", "BOUND", "CREQ", "MREQ", "BANDWIDTH", "L2")
	for _, p := range e.Points {
		t.Row(p.Batch, fmt.Sprintf("%d%%", p.ThreadPercentage), milliseconds(p.LatencyUS), "± "+milliseconds(p.ErrorBoundUS), percent(p.Creq), percent(p.Mreq), percent(p.BandwidthUtilization), percent(p.L2Utilization))
	}
	if explain {
		t.Line("")
		t.Row("OPERATOR", "KERNELS", "TIME", "GFLOP", "MOVED", "BOUND BY")
		for _, s := range e.Operators {
			t.Row(s.Op, s.Kernels, milliseconds(s.Seconds*1e6), fmt.Sprintf("%.3g", s.FLOPs/1e9), bytes(s.Bytes), s.Bound)
		}
		t.Line("")
		t.Row("SLOWEST KERNELS", "OPERATOR", "FAMILY", "TIME", "GFLOP", "MOVED", "WAVES")
		for _, k := range e.Slowest {
			t.Row(k.Node, k.Op, k.Family, milliseconds(k.Seconds*1e6), fmt.Sprintf("%.3g", k.FLOPs/1e9), bytes(k.Bytes), fmt.Sprintf("%.2g", k.Waves))
		}
		t.Line("")
		t.Line(fmt.Sprintf("%d of %d kernels at batch %d could start beside another", e.Concurrent, e.Kernels, first(e)))
	}
	for _, w := range e.Warnings {
		t.Line("warning: " + w)
	}
}

func first(e *estimator.Estimate) uint32 {
	if len(e.Points) == 0 {
		return 1
	}
	return e.Points[0].Batch
}

func last(e *estimator.Estimate) uint32 {
	if len(e.Points) == 0 {
		return 1
	}
	return e.Points[len(e.Points)-1].Batch
}

func milliseconds(us float64) string { return fmt.Sprintf("%.3g ms", us/1e3) }
func percent(v float64) string       { return fmt.Sprintf("%.0f%%", 100*v) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func count(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.1f billion", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.1f million", v/1e6)
	}
	return fmt.Sprintf("%.0f", v)
}

func bytes(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if v >= u.size {
			return fmt.Sprintf("%.3g %s", v/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", v)
}
