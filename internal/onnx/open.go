// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Limits bound what an untrusted model may cost.
type Limits struct {
	// Index is the memory of the index, in bytes, about.
	Index int64
	// Depth is how deeply graphs and types may nest.
	Depth int
	// Data is the largest tensor, in bytes, that Model.Data returns in one piece. Model.Reader has no limit.
	Data int64
}

// DefaultLimits suit models of hundreds of thousands of nodes.
func DefaultLimits() Limits { return Limits{Index: 256 << 20, Depth: 16, Data: 64 << 20} }

// Open indexes the model in the file at path, within DefaultLimits. Errors of the content are of type *FormatError or wrap ErrTooLarge.
func Open(path string) (*Model, error) { return OpenWithLimits(path, DefaultLimits()) }

// OpenWithLimits is Open within other limits.
func OpenWithLimits(path string, limits Limits) (*Model, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := Read(f, info.Size(), path, limits)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	m.weights.close = f.Close
	return m, nil
}

// Read indexes the model in the first size bytes of r, which stays in use until Close. Path names it in messages, and its directory is
// where external data lies.
func Read(r io.ReaderAt, size int64, path string, limits Limits) (*Model, error) {
	var err error
	d := decoder{budget: budget{left: limits.Index, depth: limits.Depth, strings: map[string]string{}}}
	c := cursor{s: &source{r: r, path: path}, end: size, err: &err}
	m := d.model(&c)
	if err != nil {
		return nil, err
	}
	m.Path = path
	m.weights = weights{model: r, path: path, limit: limits.Data}
	return m, nil
}

// weights is how a model's tensors are read.
type weights struct {
	model    io.ReaderAt
	path     string
	limit    int64
	external map[string]*os.File
	close    func() error
}

// Close closes the files that the model reads weights from. The index stays valid.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.weights.external {
		errs = append(errs, f.Close())
	}
	if m.weights.close != nil {
		errs = append(errs, m.weights.close())
	}
	m.weights.external, m.weights.close, m.weights.model = nil, nil, nil
	return errors.Join(errs...)
}

// WithGraph is a model of some of m's nodes: another graph, with the same operator sets and functions, whose tensors are read where m's
// are. It must not be used after m is closed.
func (m *Model) WithGraph(g *Graph) *Model {
	part := *m
	part.Graph, part.Metadata = g, nil
	part.weights.close = nil
	return &part
}

// file is the file of external data of that name, opened within the model's directory: os.Root refuses links that lead out of it.
func (w *weights) file(name string) (io.ReaderAt, error) {
	switch {
	case w.model == nil:
		return nil, fmt.Errorf("%s: the model is closed", w.path)
	case name == "":
		return w.model, nil
	}
	if f := w.external[name]; f != nil {
		return f, nil
	}
	root, err := os.OpenRoot(filepath.Dir(w.path))
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	info, err := root.Stat(filepath.FromSlash(name))
	if err != nil {
		return nil, fmt.Errorf("%s: external data: %w", w.path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: external data %s: not a regular file", w.path, name)
	}
	f, err := root.Open(filepath.FromSlash(name))
	if err != nil {
		return nil, fmt.Errorf("%s: external data: %w", w.path, err)
	}
	if w.external == nil {
		w.external = map[string]*os.File{}
	}
	w.external[name] = f
	return f, nil
}
