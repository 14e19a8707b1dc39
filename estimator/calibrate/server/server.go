// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package server runs the models of a calibration on a Triton whose model control is explicit: models are brought with the call that loads them, and
// the time of an execution is read from Triton's own statistics. It is the one part of the estimator that speaks Triton's protocol.
package server

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Runner is a calibrate.Runner on one Triton. One goroutine at a time uses it.
type Runner struct {
	client  *triton.Client
	name    string
	options Options
}

// Options say how models run.
type Options struct {
	// Python runs graphs in the python backend with ONNX Runtime on the CPU, for a server without the onnxruntime backend.
	Python bool
	// CPU puts instances on the CPU.
	CPU bool
	// Prefix of the names of models, so that they differ from all others; empty is "conch-calibrate-".
	Prefix string
}

// Dial connects to a server's gRPC endpoint.
func Dial(ctx context.Context, endpoint string, o Options) (*Runner, error) {
	c, err := triton.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	about, err := c.Metadata(ctx)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	if o.Prefix == "" {
		o.Prefix = "conch-calibrate-"
	}
	kind := "onnxruntime"
	if o.Python {
		kind = "python, ONNX Runtime"
	}
	return &Runner{client: c, name: fmt.Sprintf("%s %s (%s)", about.GetName(), about.GetVersion(), kind), options: o}, nil
}

// Close ends the connection.
func (r *Runner) Close() error { return r.client.Close() }

// Server names what runs the models.
func (r *Runner) Server() string { return r.name }

func (r *Runner) model(m calibrate.Model) string { return r.options.Prefix + m.Name }

// Load brings the model's files with the call that loads it.
func (r *Runner) Load(ctx context.Context, m calibrate.Model, file []byte) error {
	most := 1
	for _, b := range m.Batches {
		most = max(most, b)
	}
	kind := "KIND_AUTO"
	if r.options.CPU {
		kind = "KIND_CPU"
	}
	config := map[string]any{
		"name": r.model(m), "max_batch_size": most, "backend": "onnxruntime",
		"input":          []any{map[string]any{"name": calibrate.Input, "data_type": "TYPE_FP32", "dims": m.Inputs}},
		"output":         []any{map[string]any{"name": calibrate.Output, "data_type": "TYPE_FP32", "dims": m.Outputs}},
		"instance_group": []any{map[string]any{"count": 1, "kind": kind}},
	}
	parameters := map[string]*pb.ModelRepositoryParameter{
		"file:1/model.onnx": {ParameterChoice: &pb.ModelRepositoryParameter_BytesParam{BytesParam: file}},
	}
	if r.options.Python {
		config["backend"] = "python"
		parameters["file:1/model.py"] = &pb.ModelRepositoryParameter{ParameterChoice: &pb.ModelRepositoryParameter_BytesParam{BytesParam: pymodels.ONNX}}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	parameters["config"] = &pb.ModelRepositoryParameter{ParameterChoice: &pb.ModelRepositoryParameter_StringParam{StringParam: string(text)}}
	_, err = r.client.Stub.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: r.model(m), Parameters: parameters})
	switch {
	case err != nil && strings.Contains(err.Error(), "unable to find backend library for backend 'onnxruntime'"):
		return fmt.Errorf("this tritonserver has no onnxruntime backend; measure with one that has it, or on the CPU with --python: %w", err)
	case err != nil:
		return fmt.Errorf("load into the server (its model control must be explicit): %w", err)
	}
	return nil
}

// Infer runs one batch and returns its compute time (compute_infer) by Triton's statistics, without queueing and copying of tensors. It fails if the statistics do
// not count the execution.
func (r *Runner) Infer(ctx context.Context, m calibrate.Model, batch int, input []float32) (time.Duration, error) {
	before, err := r.computed(ctx, m)
	if err != nil {
		return 0, err
	}
	raw := make([]byte, 4*len(input))
	for i, v := range input {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(v))
	}
	_, err = r.client.Stub.ModelInfer(ctx, &pb.ModelInferRequest{
		ModelName:        r.model(m),
		Inputs:           []*pb.ModelInferRequest_InferInputTensor{{Name: calibrate.Input, Datatype: "FP32", Shape: append([]int64{int64(batch)}, m.Inputs...)}},
		RawInputContents: [][]byte{raw},
	})
	if err != nil {
		return 0, err
	}
	// The counter moves when the response is on its way, which may be a moment later.
	for range 100 {
		after, err := r.computed(ctx, m)
		if err != nil {
			return 0, err
		}
		if after.count > before.count {
			return time.Duration((after.ns - before.ns) / (after.count - before.count)), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return 0, fmt.Errorf("the server's statistics of %s do not count executions", r.model(m))
}

type counter struct{ count, ns uint64 }

func (r *Runner) computed(ctx context.Context, m calibrate.Model) (counter, error) {
	stats, err := r.client.Statistics(ctx, r.model(m), "")
	if err != nil {
		return counter{}, err
	}
	var c counter
	for _, s := range stats {
		infer := s.GetInferenceStats().GetComputeInfer()
		c.count += infer.GetCount()
		c.ns += infer.GetNs()
	}
	return c, nil
}

// Unload unloads the model from the server.
func (r *Runner) Unload(ctx context.Context, m calibrate.Model) error {
	return r.client.Unload(ctx, r.model(m))
}
