// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/estimator/calibrate/server"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
)

// ErrRefused is wrapped by every order that is not carried out.
var ErrRefused = errors.New("calibration refused")

const (
	// mostDisturbance is the largest part of the time in which an order may execute.
	mostDisturbance = .5
	// scratchBytes limits the memory of a scratch partition where MPS enforces that.
	scratchBytes = 2 << 30
	// stopTime bounds the end of a scratch server.
	stopTime = 20 * time.Second
)

// Clock is time as measuring needs it.
type Clock = calibrate.Clock

// Options of New.
type Options struct {
	// Driver starts scratch servers; it is no other's, so that what it finds from before is left over.
	Driver driver.Driver
	// Dir holds state files, bundles and scratch repositories.
	Dir   string
	Nodes []*policy.Node
	// Busy is the part of the time that a GPU executes of late.
	Busy func(gpu string) float64
	// Cordoned reports whether nothing new may come to a GPU; nil: to none of them.
	Cordoned func(gpu string) bool
	// Used reports whether a model had requests in the last seconds.
	Used func(model string) bool
	// Stage puts a model of the repository into a directory, and gives its configuration.
	Stage func(ctx context.Context, model, dir string) (*tritonpb.ModelConfig, error)
	// Found is called with a new bundle, Calibrated with the times of a model's batches at a share.
	Found      func(*estimator.Bundle)
	Calibrated func(model, gpuType string, share uint32, batches []warmup.Timed)
	Clock      Clock
	// Logger may be nil.
	Logger *slog.Logger
}

// Calibration executes orders, one at a time.
type Calibration struct {
	o    Options
	turn chan struct{}
}

// New makes one, has scratch servers that an earlier conch left end, and gives the bundles that it wrote.
func New(ctx context.Context, o Options) (*Calibration, []*estimator.Bundle, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("calibration: %w", err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Calibration{o: o, turn: make(chan struct{}, 1)}
	if o.Driver != nil {
		left, err := o.Driver.Find(ctx)
		if err != nil {
			o.Logger.Warn("what was left of an earlier calibration could not be removed altogether", "error", err)
		}
		c.end(ctx, left)
	}
	files, err := filepath.Glob(filepath.Join(o.Dir, "*.bundle.json"))
	if err != nil {
		return nil, nil, err
	}
	var bundles []*estimator.Bundle
	for _, file := range files {
		b, err := estimator.ReadBundle(file)
		if err != nil {
			return nil, nil, fmt.Errorf("calibration: %w; remove it to calibrate again", err)
		}
		bundles = append(bundles, b)
	}
	return c, bundles, nil
}

// end kills scratch servers that were found. Only the first order waits for that: a
// conch that starts has requests to serve.
func (c *Calibration) end(ctx context.Context, left []driver.Server) {
	if len(left) == 0 {
		return
	}
	c.turn <- struct{}{}
	go func() {
		defer func() { <-c.turn }()
		for _, s := range left {
			if err := s.Kill(ctx); err != nil {
				c.o.Logger.Warn("a scratch server of an earlier conch could not be ended", "error", err)
			}
		}
	}()
}

// Order is what orders have in common.
type Order struct {
	// GPUType is the type of GPU or CPU; empty where there is one alone.
	GPUType string
	// Shares are thread percentages; none means 100, and 50 and 25 besides where MPS enforces shares.
	Shares []int
	// Disturbance is the largest part of the time in which anything executes, above 0 and at most a half.
	Disturbance float64
	// Limit is how long the order may take; 0 for no limit.
	Limit time.Duration
	// Python runs micro-models in the python backend on the CPU, for servers without the onnxruntime backend.
	Python bool
}

// Progress is how far an order is: Done of All measurements at all shares. All is 0 where that is not known.
type Progress struct {
	Share, Done, All int
	What             string
}

// place is where an order measures.
type place struct {
	node string
	gpu  *policy.GPU
	kind string
	// enforced: shares hold. cpu: it executes on processors.
	enforced, cpu bool
	memory        uint64
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
}

// check fills in an order's defaults and finds the place that is least busy.
func (c *Calibration) check(o *Order) (place, error) {
	if c.o.Driver == nil {
		return place{}, refused("conch starts no servers here; give a server that serves nobody to tritonctl calibrate --url")
	}
	if !(o.Disturbance > 0 && o.Disturbance <= mostDisturbance) {
		return place{}, refused("a disturbance of %g: it is above 0 and at most %g", o.Disturbance, mostDisturbance)
	}
	var all []place
	kinds := map[string]bool{}
	for _, n := range c.o.Nodes {
		for _, g := range n.GetGpus() {
			_, unknown := gpu.Find(g.GetType())
			all = append(all, place{n.GetName(), g, g.GetType(), g.GetSharesEnforced(), g.GetEmulated() && unknown != nil, g.GetMemoryBytes()})
			kinds[g.GetType()] = true
		}
		if cpu := n.GetCpu(); cpu != nil {
			all = append(all, place{n.GetName(), nil, cpu.GetType(), false, true, cpu.GetMemoryBytes()})
			kinds[cpu.GetType()] = true
		}
	}
	if o.GPUType == "" && len(kinds) == 1 {
		o.GPUType = all[0].kind
	}
	all = slices.DeleteFunc(all, func(p place) bool { return p.kind != o.GPUType || p.gpu.GetUnavailable() })
	if len(all) == 0 {
		var names []string
		for k := range kinds {
			names = append(names, k)
		}
		slices.Sort(names)
		return place{}, refused("no GPU of type %q is there; there are %s", o.GPUType, strings.Join(names, ", "))
	}
	all = slices.DeleteFunc(all, func(p place) bool { return p.gpu != nil && c.o.Cordoned != nil && c.o.Cordoned(p.gpu.GetId()) })
	if len(all) == 0 {
		return place{}, refused("every %s is cordoned or drained; tritonctl gpu uncordon gives one back", o.GPUType)
	}
	at := slices.MinFunc(all, func(a, b place) int { return cmp.Compare(c.o.Busy(a.gpu.GetId()), c.o.Busy(b.gpu.GetId())) })
	switch {
	case at.gpu.GetEmulated() && !at.cpu:
		return place{}, refused("%s is an emulated %s: what executes there is this machine's processor", at.gpu.GetId(), o.GPUType)
	case o.Python && !at.cpu:
		return place{}, refused("the python backend runs micro-models on the CPU, which says nothing of a %s", o.GPUType)
	}
	if len(o.Shares) == 0 {
		o.Shares = []int{100}
		if at.enforced {
			o.Shares = []int{100, 50, 25}
		}
	}
	for _, share := range o.Shares {
		switch {
		case share < 1 || share > 100:
			return place{}, refused("a share of %d%%: thread percentages are from 1 to 100", share)
		case share < 100 && !at.enforced:
			return place{}, refused("a share of %d%%: nothing enforces shares on %s, so that all of it would be measured", share, cmp.Or(at.gpu.GetId(), at.kind))
		}
	}
	return at, nil
}

// take begins the one order that runs at a time.
func (c *Calibration) take() (release func(), err error) {
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn }, nil
	default:
		return nil, refused("another calibration is under way, or what is left of one ends")
	}
}

// scratch starts a server at a share of a place, with an empty repository.
func (c *Calibration) scratch(ctx context.Context, at place, share int) (s driver.Server, dir string, stop func() error, err error) {
	dir = filepath.Join(c.o.Dir, "scratch")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, "", nil, err
	}
	p := &policy.Partition{Id: "scratch", Node: at.node, ThreadPercentage: uint32(share)}
	if at.gpu != nil {
		p.Gpus = []string{at.gpu.GetId()}
	}
	if at.enforced {
		p.MemoryLimitBytes = scratchBytes
	}
	if s, err = c.o.Driver.Start(ctx, driver.Spec{Partition: p, GPU: at.gpu, Hash: c.o.Driver.Hash(p, at.gpu), RepositoryDir: dir}); err != nil {
		return nil, "", nil, fmt.Errorf("scratch partition of %d%%: %w", share, err)
	}
	return s, dir, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		return errors.Join(s.Stop(ctx), os.RemoveAll(dir))
	}, nil
}

// Device measures micro-models on a type of device at each share, fits a bundle, and keeps it. An order that was ended goes on where it was: its results
// are kept as they come.
func (c *Calibration) Device(ctx context.Context, o Order, progress func(Progress)) (*estimator.Bundle, error) {
	at, err := c.check(&o)
	if err != nil {
		return nil, err
	}
	release, err := c.take()
	if err != nil {
		return nil, err
	}
	defer release()
	if !slices.Contains(o.Shares, 100) {
		o.Shares = append([]int{100}, o.Shares...)
	}
	sheet, err := gpu.Find(at.kind)
	if at.cpu {
		sheet, err = calibrate.CPU(float64(at.memory)), nil
		sheet.Name = at.kind
	}
	if err != nil {
		return nil, refused("%v", err)
	}
	file := filepath.Join(c.o.Dir, name(at.kind))
	began := c.o.Clock.Now()
	var state *calibrate.State
	for i, share := range o.Shares {
		m := calibrate.Options{
			State: file + ".state.json", Share: share, Idle: 1/o.Disturbance - 1, Quantile: .5, Runs: 15, Clock: c.o.Clock,
			Progress: func(done, all int, model string) { progress(Progress{share, i*all + done, len(o.Shares) * all, model}) },
		}
		if at.cpu {
			m.Quantile = 0 // a processor does other things besides
		}
		if o.Limit > 0 {
			m.Limit = max(time.Millisecond, o.Limit-c.o.Clock.Now().Sub(began))
		}
		if state, err = c.micros(ctx, at, share, o.Python, m); err != nil {
			return nil, err
		}
	}
	bundle, err := calibrate.Fit(state, sheet, lower.ONNXRuntime())
	if err != nil {
		return nil, err
	}
	if err := bundle.Write(file + ".bundle.json"); err != nil {
		return nil, err
	}
	if err := os.Remove(file + ".state.json"); err != nil { // the next order measures anew
		return nil, err
	}
	c.o.Found(bundle)
	return bundle, nil
}

func (c *Calibration) micros(ctx context.Context, at place, share int, python bool, m calibrate.Options) (state *calibrate.State, err error) {
	s, _, stop, err := c.scratch(ctx, at, share)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	runner, err := server.Dial(ctx, s.Endpoint().GRPC, server.Options{Python: python, CPU: at.cpu})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	return calibrate.Measure(ctx, runner, calibrate.Micros(), m)
}

// name of a type as part of a file name.
func name(kind string) string {
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, kind)
	if plain == kind {
		return kind
	}
	return plain + "-" + strconv.FormatUint(uint64(checksum(kind)), 16)
}

// checksum (FNV-1a) tells types apart whose plain names are the same.
func checksum(s string) uint32 {
	sum := uint32(2166136261)
	for i := range len(s) {
		sum = (sum ^ uint32(s[i])) * 16777619
	}
	return sum
}
