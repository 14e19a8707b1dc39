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
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
)

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
	runner := &stubRunner{Runner: connection, server: triton.Pid(), peak: map[execution]float64{}}
	o := calibrate.Options{Clock: clock.Interruptible{}, Runs: 25, Budget: time.Second, Progress: func(done, all int, model string) {
		if done%10 == 0 {
			b.say(fmt.Sprintf("estimator.cpu: %d of %d, %s", done, all, model))
		}
	}}
	micros, err := calibrate.Measure(ctx, runner, calibrate.Micros(), o)
	if err != nil {
		return err
	}
	rt := lower.ONNXRuntime().OnProcessor()
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
	r.Add("estimator.cpu.latency_median_error", 100*estimator.Median(errs), "%", "whole models on this CPU, one thread of ONNX Runtime in a real Triton, processor time, from micro-models alone: residual, depthwise, inception, encoder, dense, plain, mixer at batches 1 to 16")
	r.Add("estimator.cpu.latency_p90_error", 100*estimator.P90(errs), "%", "")
	r.Add("estimator.cpu.micro_left_out_median_error", 100*bundle.Median, "%", fmt.Sprintf("the worst kind of kernel, micro-models left out; %d measurements", bundle.Measurements))
	again := &stubRunner{Runner: connection, server: runner.server, peak: map[execution]float64{}}
	if _, err := calibrate.Measure(ctx, again, calibrate.Whole(), calibrate.Options{Clock: clock.Interruptible{}, Runs: 3}); err != nil {
		return err
	}
	return b.estimatorMemory(r, runner.peak, again.peak, &d)
}

// estimatorMemory holds the memory that is estimated of whole models at each batch against the peak of resident memory of the processes that executed them.
// What a process holds beside weights and values (its code, Python, ONNX Runtime) is one number: the median of what those of micro-models hold besides.
func (b *bench) estimatorMemory(r *figure.Report, peak, again map[execution]float64, d *estimator.Device) error {
	var beside []float64
	for _, m := range calibrate.Micros() {
		own, err := ownMemory(m, d)
		if err != nil {
			return err
		}
		for i, batch := range m.Batches {
			beside = append(beside, peak[execution{m.Name, batch}]-own[i])
		}
	}
	process := estimator.Median(beside)
	b.say(fmt.Sprintf("estimator.cpu: beside weights and values the processes of micro-models hold %.1f MB (%.1f to %.1f in four of five)",
		process/1e6, regress.Quantile(beside, .1)/1e6, regress.Quantile(beside, .9)/1e6))
	var all, alone, repeated []float64
	for _, m := range calibrate.Whole() {
		own, err := ownMemory(m, d)
		if err != nil {
			return err
		}
		for i, batch := range m.Batches {
			at := execution{m.Name, batch}
			all = append(all, math.Abs((process+own[i])/peak[at]-1))
			alone = append(alone, math.Abs(own[i]/(peak[at]-process)-1))
			repeated = append(repeated, math.Abs(again[at]/peak[at]-1))
			b.say(fmt.Sprintf("estimator.cpu: %s batch %d: peak resident %.1f MB, again %.1f; estimated %.1f: %.1f of weights and values, %.1f of the process",
				m.Name, batch, peak[at]/1e6, again[at]/1e6, (process+own[i])/1e6, own[i]/1e6, process/1e6))
		}
	}
	r.Add("estimator.cpu.memory_median_error", 100*estimator.Median(all), "%", "peak resident memory, from when it is loaded, of the process of a real Triton that executes the model: weights, values, arena, and what a process of a micro-model holds besides; whole models at batches 1 to 16")
	r.Add("estimator.cpu.memory_p90_error", 100*estimator.P90(all), "%", "")
	r.Add("estimator.cpu.memory_repeat_median_difference", 100*estimator.Median(repeated), "%", "how far the same measurement is off the first when the models are loaded and executed once more")
	r.Add("estimator.cpu.memory_own_median_error", 100*estimator.Median(alone), "%", "the same as memory_median_error without what any process holds, of weights, values and arena alone")
	return nil
}

// ownMemory is the estimate of weights, values and arena at each batch of a model, and of the copies of inputs and results that Triton's python backend
// makes: one in memory that it shares with the server, where larger ones do not fit into what smaller ones left, and one of its own.
func ownMemory(m calibrate.Model, d *estimator.Device) ([]float64, error) {
	file, err := m.Build()
	if err != nil {
		return nil, err
	}
	s, err := estimator.Read(bytes.NewReader(file), int64(len(file)), m.Name+".onnx")
	if err != nil {
		return nil, err
	}
	e, err := s.Estimate(estimator.Declared{MaxBatch: m.Batches[len(m.Batches)-1]}, estimator.Grid{Batches: m.Batches, Shares: []int{100}}, *d)
	if err != nil {
		return nil, err
	}
	input, result := 4.0, 4.0
	for _, n := range m.Inputs {
		input *= float64(n)
	}
	for _, n := range m.Outputs {
		result *= float64(n)
	}
	var all []float64
	shared := 0.0
	for _, p := range e.Points {
		rows := float64(p.Batch)
		shared += (input + result) * rows
		own := result * rows // the input is one of the values
		all = append(all, p.Mreq*e.MemoryOfGPU+shared+own)
	}
	return all, nil
}
