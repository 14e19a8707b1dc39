// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonmodel

import (
	"fmt"
	"path"
	"strings"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Model is a Triton model as far as its configuration describes it to an estimate.
type Model struct {
	// File is the model file's name in its version directory.
	File string
	// Runtime is onnxruntime, tensorrt or eager (TorchScript).
	Runtime  string
	Declared estimator.Declared
	// Assumption says why File may not be all that the server executes; empty where the server executes File alone.
	Assumption string
}

// Of reads a configuration; nil is a model directory without one. Files are the names in the version directory that the server would load.
//
// A python model with one ONNX file beside it is taken for a model that executes that file: the usual reason to put it there. Assumption says so.
func Of(c *tritonpb.ModelConfig, files []string) Model {
	m := Model{Runtime: "onnxruntime"}
	if c != nil {
		m.Declared = estimator.Declared{MaxBatch: int(c.GetMaxBatchSize()), Inputs: map[string][]int64{}}
	}
	for _, in := range c.GetInput() {
		m.Declared.Inputs[in.GetName()] = in.GetDims()
	}
	if m.File = c.GetDefaultModelFilename(); m.File == "" {
		m.File = defaultFile(c.GetPlatform() + c.GetBackend())
	}
	for _, a := range c.GetOptimization().GetExecutionAccelerators().GetGpuExecutionAccelerator() {
		if a.GetName() == "tensorrt" {
			m.Runtime = "tensorrt"
		}
	}
	switch path.Ext(m.File) {
	case ".plan":
		m.Runtime = "tensorrt"
	case ".pt":
		m.Runtime = "eager"
	case ".py":
		var graphs []string
		for _, f := range files {
			if path.Ext(f) == ".onnx" {
				graphs = append(graphs, f)
			}
		}
		if len(graphs) == 1 {
			m.Assumption = fmt.Sprintf("%s is a python model: it is estimated as if it executed %s beside it and nothing else", m.File, graphs[0])
			m.File = graphs[0]
		}
	}
	return m
}

// defaultFile is the file that Triton looks for where the configuration names none.
func defaultFile(backend string) string {
	switch {
	case strings.HasPrefix(backend, "tensorrt"):
		return "model.plan"
	case strings.HasPrefix(backend, "pytorch"):
		return "model.pt"
	case strings.HasPrefix(backend, "python"):
		return "model.py"
	case strings.HasPrefix(backend, "tensorflow"):
		return "model.graphdef"
	case strings.HasPrefix(backend, "openvino"):
		return "model.xml"
	}
	return "model.onnx"
}

// Grid is the default one of the estimator: batches up to the configured maximum.
func (m *Model) Grid() estimator.Grid { return estimator.DefaultGrid(m.Declared.MaxBatch) }
