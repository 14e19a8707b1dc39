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

	"github.com/conch-serving/conch/internal/modeldir"
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
	f, info, err := modeldir.Open(path)
	if err != nil {
		return nil, err
	}
	return opened(f, info, path, limits)
}

// OpenIn is Open for the file with that name, with slashes, of a model's directory: neither it nor external data may lie outside of that.
func OpenIn(dir *os.Root, name string) (*Model, error) {
	f, info, err := modeldir.OpenIn(dir, name)
	if err != nil {
		return nil, err
	}
	m, err := opened(f, info, filepath.Join(dir.Name(), filepath.FromSlash(name)), DefaultLimits())
	if err != nil {
		return nil, err
	}
	if m.weights.root, err = dir.OpenRoot(filepath.Dir(filepath.FromSlash(name))); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func opened(f *os.File, info fs.FileInfo, path string, limits Limits) (*Model, error) {
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
	// root is the directory that external data lies in; nil until it is needed.
	root  *os.Root
	close func() error
}

// Close closes the files that the model reads weights from. The index stays valid.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.weights.external {
		errs = append(errs, f.Close())
	}
	if m.weights.root != nil {
		errs = append(errs, m.weights.root.Close())
	}
	if m.weights.close != nil {
		errs = append(errs, m.weights.close())
	}
	m.weights.external, m.weights.root, m.weights.close, m.weights.model = nil, nil, nil, nil
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

// file is the file of external data of that name, opened within the model's directory.
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
	if w.root == nil {
		root, err := modeldir.Root(filepath.Dir(w.path))
		if err != nil {
			return nil, err
		}
		w.root = root
	}
	f, _, err := modeldir.OpenIn(w.root, name)
	if err != nil {
		return nil, fmt.Errorf("%s: external data: %w", w.path, err)
	}
	if w.external == nil {
		w.external = map[string]*os.File{}
	}
	w.external[name] = f
	return f, nil
}
