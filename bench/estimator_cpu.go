// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/estimator/calibrate/server"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/estimator/regress"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
)

// machineClock is this machine's time.
type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

func (machineClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// estimatorCPU calibrates this machine's CPU on micro-models through a real Triton, and predicts whole models that the fit never saw.
func (b *bench) estimatorCPU(ctx context.Context, r *figure.Report) (err error) {
	if b.server == "" {
		return errors.New("a real tritonserver is needed: --tritonserver or CONCH_TRITONSERVER")
	}
	repository, err := os.MkdirTemp("", "conch-calibrate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(repository)
	triton, err := rig.StartServer(ctx, rig.ServerOptions{Server: b.server, Repository: repository})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, triton.Close()) }()
	connection, err := server.Dial(ctx, triton.GRPC, server.Options{Python: true, CPU: true})
	if err != nil {
		return err
	}
	defer connection.Close() //nolint:errcheck // it has done its work
	runner := &stubRunner{Runner: connection, server: triton.Pid(), resident: map[string]uint64{}}
	o := calibrate.Options{Clock: machineClock{}, Runs: 25, Budget: time.Second, Progress: func(done, all int, model string) {
		if done%10 == 0 {
			b.say(fmt.Sprintf("estimator.cpu: %d of %d, %s", done, all, model))
		}
	}}
	micros, err := calibrate.Measure(ctx, runner, calibrate.Micros(), o)
	if err != nil {
		return err
	}
	rt := lower.ONNXRuntime()
	bundle, err := calibrate.Fit(micros, calibrate.CPU(16e9), rt)
	if err != nil {
		return err
	}
	for name, e := range bundle.Kernels.LeftOut() {
		b.say(fmt.Sprintf("estimator.cpu: %s left out: median %.0f%%, 90th percentile %.0f%%", name, 100*math.Expm1(e[0]), 100*math.Expm1(e[1])))
	}
	whole, err := calibrate.Measure(ctx, runner, calibrate.Whole(), o)
	if err != nil {
		return err
	}
	samples, err := calibrate.Samples(whole.Results, calibrate.Whole(), rt)
	if err != nil {
		return err
	}
	d, err := bundle.Device()
	if err != nil {
		return err
	}
	predicted := estimator.Predict(&d, samples, bundle.Factors)
	var errs []float64
	for i, s := range samples {
		errs = append(errs, math.Abs(predicted[i]/s.Seconds-1))
		b.say(fmt.Sprintf("estimator.cpu: %s batch %d: measured %.3g ms, predicted %.3g ms", s.Model, s.Batch, 1e3*s.Seconds, 1e3*predicted[i]))
	}
	r.Add("estimator.cpu.latency_median_error", 100*estimator.Median(errs), "%", "whole models on this CPU, one thread of ONNX Runtime in a real Triton, processor time, from micro-models alone: residual, depthwise, inception, encoder at batches 1 to 16")
	r.Add("estimator.cpu.latency_p90_error", 100*estimator.P90(errs), "%", "")
	r.Add("estimator.cpu.micro_left_out_median_error", 100*bundle.Median, "%", fmt.Sprintf("the worst kind of kernel, micro-models left out; %d measurements", bundle.Measurements))
	return b.estimatorMemory(r, runner, &d)
}

// estimatorMemory holds what is estimated of whole models at their largest batch against the resident memory of the processes that ran them. What a process
// holds beside weights and values (its code, ONNX Runtime, threads' buffers) is the median of that of the micro-models.
func (b *bench) estimatorMemory(r *figure.Report, runner *stubRunner, d *estimator.Device) error {
	estimate := func(m calibrate.Model) (estimator.Memory, error) {
		file, err := m.Build()
		if err != nil {
			return estimator.Memory{}, err
		}
		s, err := estimator.Read(bytes.NewReader(file), int64(len(file)), m.Name+".onnx")
		if err != nil {
			return estimator.Memory{}, err
		}
		batch := m.Batches[len(m.Batches)-1]
		e, err := s.Estimate(estimator.Declared{MaxBatch: batch}, estimator.Grid{Batches: []int{batch}, Shares: []int{100}}, *d)
		if err != nil {
			return estimator.Memory{}, err
		}
		return e.Memory, nil
	}
	var rest []float64
	for _, m := range calibrate.Micros() {
		memory, err := estimate(m)
		if err != nil {
			return err
		}
		rest = append(rest, float64(runner.resident[m.Name])-memory.Total())
	}
	base := estimator.Median(rest)
	b.say(fmt.Sprintf("estimator.cpu: beside weights and values the processes of micro-models hold %.1f MB (%.1f to %.1f in four of five)",
		base/1e6, regress.Quantile(rest, .1)/1e6, regress.Quantile(rest, .9)/1e6))
	var total, own []float64
	for _, m := range calibrate.Whole() {
		memory, err := estimate(m)
		if err != nil {
			return err
		}
		measured := float64(runner.resident[m.Name])
		total = append(total, math.Abs((base+memory.Total())/measured-1))
		own = append(own, math.Abs(memory.Total()/(measured-base)-1))
		b.say(fmt.Sprintf("estimator.cpu: %s: resident %.1f MB; estimated %.1f weights, %.1f activations, %.1f arena, %.1f of the process",
			m.Name, measured/1e6, memory.Parameters/1e6, memory.Activations/1e6, memory.Arena/1e6, base/1e6))
	}
	r.Add("estimator.cpu.memory_median_error", 100*estimator.Median(total), "%", "resident memory of the process of a real Triton that ran the model at batch 16: weights, activations, arena, and what a process of a micro-model holds besides")
	r.Add("estimator.cpu.memory_own_median_error", 100*estimator.Median(own), "%", "the same of weights, activations and arena alone")
	return nil
}
