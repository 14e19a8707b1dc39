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
	"github.com/conch-serving/conch/estimator/tritonmodel"
	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/repo"
)

// Model is a model on this machine.
type Model struct {
	Name string
	// File is the model's file, Directory its model directory; the latter is empty where only a file was given.
	File, Directory string
	// Model is what config.pbtxt says of it.
	tritonmodel.Model
	// Strict refuses dimensions in Declared.Dims that the model does not name.
	Strict bool
}

// Find reads path as a file or a model directory.
func Find(path string) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return &Model{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), File: path, Model: tritonmodel.Model{Runtime: "onnxruntime"}}, nil
	}
	m := &Model{Name: filepath.Base(filepath.Clean(path)), Directory: path}
	of := func(files []string) tritonmodel.Model { return tritonmodel.Of(nil, files) }
	text, err := modeldir.ReadFile(path, "config.pbtxt")
	if err == nil {
		config, err := repo.ReadConfig(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(path, "config.pbtxt"), err)
		}
		of = func(files []string) tritonmodel.Model { return tritonmodel.Of(config, files) }
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	root, err := modeldir.Root(path)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	entries, err := modeldir.ReadDir(root, ".")
	if err != nil {
		return nil, err
	}
	m.Model = of(nil)
	latest := int64(-1)
	for _, v := range entries {
		n, err := strconv.ParseInt(v.Name(), 10, 64)
		if err != nil || n <= latest {
			continue
		}
		files, err := modeldir.ReadDir(root, v.Name())
		if errors.Is(err, modeldir.ErrOutside) {
			return nil, err
		} else if err != nil {
			continue // no directory: Triton passes it over too
		}
		names := make([]string, len(files))
		for i, f := range files {
			names[i] = f.Name()
		}
		if candidate := of(names); slices.Contains(names, candidate.File) {
			latest, m.Model, m.File = n, candidate, filepath.Join(path, v.Name(), candidate.File)
		}
	}
	if m.File == "" {
		return nil, fmt.Errorf("%s: no version directory has %s", path, m.Model.File)
	}
	return m, nil
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
				return nil //nolint:nilerr // listed among the problems
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

// open opens the model's file: that of a model directory has to lie in it.
func (m *Model) open() (*os.File, int64, error) {
	open := func() (*os.File, fs.FileInfo, error) { return modeldir.Open(m.File) }
	if m.Directory != "" {
		name, err := filepath.Rel(m.Directory, m.File)
		if err != nil {
			return nil, 0, err
		}
		root, err := modeldir.Root(m.Directory)
		if err != nil {
			return nil, 0, err
		}
		defer root.Close() //nolint:errcheck // only read from
		open = func() (*os.File, fs.FileInfo, error) { return modeldir.OpenIn(root, filepath.ToSlash(name)) }
	}
	f, info, err := open()
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// On estimates the model on a device.
func (m *Model) On(d estimator.Device, g estimator.Grid) (e *estimator.Estimate, err error) {
	file, size, err := m.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	s, err := estimator.Read(file, size, m.File)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	s.Name = m.Name
	if m.Strict {
		if err := s.CheckDims(m.Declared.Dims); err != nil {
			return nil, err
		}
	}
	if e, err = s.Estimate(m.Declared, g, d); err == nil && m.Assumption != "" {
		e.Warnings = append([]string{m.Assumption}, e.Warnings...)
	}
	return e, err
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
