// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
	"github.com/conch-serving/conch/plugins/policy/grid"
)

// Subject is a model file ready to be estimated: a graph, or a file that only its runtime can read.
type Subject struct {
	Name string
	Path string
	// Graph is nil for what is no ONNX model.
	Graph *shape.Graph
	// Kind says what the file is; Size is its bytes, external data included where they are there.
	Kind string
	Size int64
	// file is what Open opened.
	file *os.File
}

// Declared is what a config.pbtxt says of a model.
type Declared struct {
	// MaxBatch is max_batch_size: at least 1 means that dims leave the batch dimension out.
	MaxBatch int
	// Inputs are dims by input name; -1 is a dimension that varies.
	Inputs map[string][]int64
	// Dims are sizes of dimensions that the model names ("sequence"), Free that of every other that is not fixed; 0 means 128.
	Dims map[string]int64
	Free int64
}

// kinds of model files that are no graphs.
var kinds = map[string]string{
	".plan": "TensorRT plan", ".engine": "TensorRT plan", ".pt": "TorchScript file", ".pth": "TorchScript file", ".py": "python model",
	".graphdef": "TensorFlow graph", ".pb": "TensorFlow graph", ".xml": "OpenVINO model", ".json": "tree ensemble", ".txt": "tree ensemble",
}

// Open reads a model file. External data is not needed: sizes of tensors stand in the graph, and paths that lead out of the model's directory are refused.
func Open(path string) (*Subject, error) {
	file, info, err := modeldir.Open(path)
	if err != nil {
		return nil, err
	}
	s, err := Read(file, info.Size(), path)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.file = file
	return s, nil
}

// Read is Open for content that lies elsewhere than under its name: path is what the model file is called, size its bytes. The caller keeps r open
// until the subject is closed.
func Read(r io.ReaderAt, size int64, path string) (*Subject, error) {
	if s := opaqueSubject(path, size); s != nil {
		return s, nil
	}
	m, err := onnx.Read(r, size, path, onnx.DefaultLimits())
	if err != nil {
		return nil, err
	}
	s := &Subject{Name: nameOf(path), Path: path, Size: size, Kind: "ONNX graph"}
	if s.Graph, err = shape.Compile(m); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return s, nil
}

// opaqueSubject is a file that only its runtime can read; nil for one that may be a graph.
func opaqueSubject(path string, size int64) *Subject {
	kind, ok := kinds[strings.ToLower(filepath.Ext(path))]
	if !ok {
		return nil
	}
	return &Subject{Name: nameOf(path), Path: path, Size: size, Kind: kind}
}

func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)) }

// Close closes the model's files.
func (s *Subject) Close() error {
	var errs []error
	if s.Graph != nil {
		errs = append(errs, s.Graph.Model.Close())
	}
	if s.file != nil {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

// Estimate is the profile of a subject on a device.
func (s *Subject) Estimate(declared Declared, g Grid, d Device) (*Estimate, error) {
	if s.Graph == nil {
		return s.opaque(g, d)
	}
	var assumed []string
	e, err := Do(Request{Model: s.Name, Graph: s.Graph, Grid: g, Device: d, Inputs: func(batch int) (map[string][]int64, error) {
		shapes, a, err := FeedShapes(s.Graph, declared, batch)
		assumed = a
		return shapes, err
	}})
	if err != nil {
		return nil, err
	}
	e.Warnings = append(assumed, e.Warnings...)
	return e, nil
}

// opaque estimates a model whose file only its runtime can read: its memory is at least the file and a context. A python model has not even that bound.
func (s *Subject) opaque(g Grid, d Device) (*Estimate, error) {
	e := &Estimate{
		Profile: grid.Profile{Model: s.Name, GPUType: d.Sheet.Name, Source: grid.Estimated, Points: []grid.Point{}}, Basis: "size of the file", Bound: 1,
		Memory: Memory{Context: d.Sheet.Context},
	}
	if s.Kind == "python model" {
		e.Warnings = []string{"a python model does what its code says: nothing is estimated but the context of its process; Conch learns its profile by observing it, or `tritonctl calibrate model` measures it"}
	} else {
		e.Memory.Parameters = float64(s.Size)
		e.Warnings = []string{fmt.Sprintf("a %s is no ONNX graph: its memory is estimated from the size of the file, without activations; its latency is the time to read the file's bytes once from the GPU's memory, a lower bound that says nothing of arithmetic; Conch learns the profile by observing it", s.Kind)}
		for _, batch := range g.Batches {
			for _, p := range g.Shares {
				share := float64(p) / 100
				us := (d.Factors.Fixed + float64(s.Size)/(d.Sheet.Bandwidth*min(1, share/d.Factors.Saturation))) * 1e6
				e.Points = append(e.Points, grid.Point{Batch: uint32(batch), ThreadPercentage: uint32(p), LatencyUS: us, ErrorBoundUS: 20 * us * float64(batch), Creq: share, Mreq: min(1, e.Memory.Total()/d.Sheet.Memory), BandwidthUtilization: 1, L2Utilization: 1})
			}
		}
		e.Bound = 20
	}
	e.MemoryOfGPU = d.Sheet.Memory
	e.Fits = e.Memory.Total() <= d.Sheet.Memory
	return e, nil
}
