// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package estimating finds the models that `tritonctl estimate` and `tritonctl repo validate` are asked about: a file, a model directory, or a model
// of a repository, with what its config.pbtxt declares.
package estimating

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/repo"
)

// Model is a model on this machine.
type Model struct {
	Name string
	// File is the model's file, Directory its model directory; the latter is empty where only a file was given.
	File, Directory string
	Declared        estimator.Declared
	// Runtime is what config.pbtxt says will run it: onnxruntime, tensorrt or eager (TorchScript).
	Runtime string
}

// Find reads path as a file or a model directory.
func Find(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return &Model{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), File: path, Runtime: "onnxruntime"}, nil
	}
	m := &Model{Name: filepath.Base(filepath.Clean(path)), Directory: path, Runtime: "onnxruntime"}
	file := "model.onnx"
	text, err := os.ReadFile(filepath.Join(path, "config.pbtxt"))
	switch {
	case err == nil:
		config, err := repo.ReadConfig(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(path, "config.pbtxt"), err)
		}
		m.Declared = estimator.Declared{MaxBatch: int(config.GetMaxBatchSize()), Inputs: map[string][]int64{}}
		for _, in := range config.GetInput() {
			m.Declared.Inputs[in.GetName()] = in.GetDims()
		}
		if config.GetDefaultModelFilename() != "" {
			file = config.GetDefaultModelFilename()
		} else {
			file = fileOf(config.GetPlatform() + config.GetBackend())
		}
		for _, a := range config.GetOptimization().GetExecutionAccelerators().GetGpuExecutionAccelerator() {
			if a.GetName() == "tensorrt" {
				m.Runtime = "tensorrt"
			}
		}
		switch file {
		case "model.plan":
			m.Runtime = "tensorrt"
		case "model.pt":
			m.Runtime = "eager"
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	versions, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	latest := int64(-1)
	for _, v := range versions {
		if n, err := strconv.ParseInt(v.Name(), 10, 64); err == nil && n > latest {
			if _, err := os.Stat(filepath.Join(path, v.Name(), file)); err == nil {
				latest, m.File = n, filepath.Join(path, v.Name(), file)
			}
		}
	}
	if m.File == "" {
		return nil, fmt.Errorf("%s: no version directory has %s", path, file)
	}
	return m, nil
}

// fileOf is the model file that Triton looks for.
func fileOf(backend string) string {
	switch {
	case strings.HasPrefix(backend, "tensorrt"):
		return "model.plan"
	case strings.HasPrefix(backend, "pytorch"):
		return "model.pt"
	case strings.HasPrefix(backend, "python"):
		return "model.py"
	case strings.HasPrefix(backend, "tensorflow"):
		return "model.graphdef"
	}
	return "model.onnx"
}

// All lists the models below a directory: model directories of a repository, and ONNX files anywhere. A model that cannot be found is listed with why.
func All(directory string) (models []*Model, problems map[string]error, err error) {
	problems = map[string]error{}
	err = filepath.WalkDir(directory, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if _, err := os.Stat(filepath.Join(path, "config.pbtxt")); err != nil {
				return nil //nolint:nilerr // no model: what is below may be some
			}
			m, err := Find(path)
			if err != nil {
				problems[path] = err
			} else {
				models = append(models, m)
			}
			return filepath.SkipDir
		case slices.Contains([]string{".onnx", ".plan", ".pt"}, filepath.Ext(path)):
			m, err := Find(path)
			if err != nil {
				problems[path] = err
				return nil //nolint:nilerr // told beside the others
			}
			models = append(models, m)
		}
		return nil
	})
	return models, problems, err
}

// Grid is the default one: batches up to max_batch_size, or to 32 where only a file is known.
func (m *Model) Grid() estimator.Grid {
	switch {
	case m.Declared.MaxBatch > 0:
		return estimator.DefaultGrid(m.Declared.MaxBatch)
	case m.Directory != "":
		return estimator.DefaultGrid(1) // max_batch_size 0: the model takes no batches of Triton's
	}
	return estimator.DefaultGrid(32)
}

// On estimates the model on a device.
func (m *Model) On(d estimator.Device, g estimator.Grid) (e *estimator.Estimate, err error) {
	s, err := estimator.Open(m.File)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	s.Name = m.Name
	return s.Estimate(m.Declared, g, d)
}

// Estimate estimates the model on a GPU type, for the largest batch and the whole GPU.
func (m *Model) Estimate(gpu string) (*estimator.Estimate, error) {
	d, err := estimator.NewDevice(gpu, m.Runtime)
	if err != nil {
		return nil, err
	}
	g := m.Grid()
	return m.On(d, estimator.Grid{Batches: g.Batches[len(g.Batches)-1:], Shares: []int{100}})
}
