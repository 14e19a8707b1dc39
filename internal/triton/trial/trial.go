// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package trial runs model directories on a Triton that is there for trying things: its repository is a directory that we may write,
// and it loads by explicit control. Merges are verified with it.
package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// loadTimeout bounds a load, which can hang for ever in Triton.
const loadTimeout = 2 * time.Minute

// Server is such a Triton.
type Server struct {
	client     *triton.Client
	endpoint   string
	repository string
}

// Open prepares a server at host:port or unix:path whose repository is that directory.
func Open(endpoint, repository string) (*Server, error) {
	if info, err := os.Stat(repository); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", repository)
	}
	c, err := triton.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	return &Server{client: c, endpoint: endpoint, repository: repository}, nil
}

// Close closes the connection.
func (s *Server) Close() error { return s.client.Close() }

// Name says which server it is.
func (s *Server) Name() string { return "Triton at " + s.endpoint }

// Load copies a model's directory into the repository and loads it. A model of that name that is there already is not overwritten: that
// is an error.
func (s *Server) Load(ctx context.Context, name, dir string) error {
	into := filepath.Join(s.repository, name)
	if _, err := os.Lstat(into); err == nil {
		return fmt.Errorf("%s has a model %q already: give a repository for trials alone", s.repository, name)
	}
	if err := copyModel(ctx, dir, into); err != nil {
		return errors.Join(err, os.RemoveAll(into))
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	if err := s.client.Load(ctx, name); err != nil {
		return errors.Join(err, os.RemoveAll(into))
	}
	return nil
}

// copyModel copies the files of a model's directory; links are followed where they stay inside.
func copyModel(ctx context.Context, from, into string) error {
	root, err := modeldir.Root(from)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read from
	return copyDirectory(ctx, root, ".", into)
}

// copyDirectory ends where a link points to a parent: a name with many links in it is an error of the root.
func copyDirectory(ctx context.Context, root *os.Root, name, into string) error {
	entries, err := modeldir.ReadDir(root, name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		inside, to := path.Join(name, e.Name()), filepath.Join(into, e.Name())
		info, err := root.Stat(filepath.FromSlash(inside))
		switch {
		case err == nil && info.IsDir() && e.Name() == "__pycache__":
		case err == nil && info.IsDir():
			if err := copyDirectory(ctx, root, inside, to); err != nil {
				return err
			}
		default:
			if err := copyFile(ctx, root, inside, to); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyFile(ctx context.Context, root *os.Root, name, to string) error {
	in, info, err := modeldir.OpenIn(root, name)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read from
	// A hard link costs nothing where the repository lies on the same file system.
	if resolved, err := filepath.EvalSymlinks(filepath.Join(root.Name(), filepath.FromSlash(name))); err == nil && os.Link(resolved, to) == nil {
		if linked, err := os.Lstat(to); err == nil && os.SameFile(info, linked) {
			return nil
		}
		if err := os.Remove(to); err != nil { // another file came into its place meanwhile
			return err
		}
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // the server may be another user
	if err != nil {
		return err
	}
	for n := int64(1); n > 0 && err == nil; err = errors.Join(err, ctx.Err()) {
		if n, err = io.CopyN(out, in, piece); errors.Is(err, io.EOF) {
			n, err = 0, nil
		}
	}
	return errors.Join(err, out.Close())
}

// piece is how much is copied before the context is asked again.
const piece = 64 << 20

// Unload unloads the model and takes its directory away again.
func (s *Server) Unload(ctx context.Context, name string) error {
	err := s.client.Unload(ctx, name)
	return errors.Join(err, os.RemoveAll(filepath.Join(s.repository, name)))
}

// Run executes the model once, with tensors as raw bytes.
func (s *Server) Run(ctx context.Context, name string, inputs []onnx.Array) ([]onnx.Array, error) {
	q := &pb.ModelInferRequest{ModelName: name}
	for _, x := range inputs {
		kind, known := datatypes[x.Type]
		if !known {
			return nil, fmt.Errorf("input %q: Triton has no type for %s", x.Name, x.Type)
		}
		q.Inputs = append(q.Inputs, &pb.ModelInferRequest_InferInputTensor{Name: x.Name, Datatype: kind, Shape: x.Dims})
		q.RawInputContents = append(q.RawInputContents, x.Data)
	}
	r, err := s.client.Stub.ModelInfer(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("%s: model %q: %w", s.endpoint, name, err)
	}
	if len(r.GetOutputs()) != len(r.GetRawOutputContents()) {
		return nil, fmt.Errorf("%s: model %q: %d outputs, %d of them raw", s.endpoint, name, len(r.GetOutputs()), len(r.GetRawOutputContents()))
	}
	var out []onnx.Array
	for i, y := range r.GetOutputs() {
		kind, known := typesOf[y.GetDatatype()]
		if !known {
			return nil, fmt.Errorf("output %q is of type %s, which cannot be compared", y.GetName(), y.GetDatatype())
		}
		out = append(out, onnx.Array{Name: y.GetName(), Type: kind, Dims: y.GetShape(), Data: r.GetRawOutputContents()[i]})
	}
	return out, nil
}

var datatypes = map[onnx.DataType]string{
	onnx.Bool: "BOOL", onnx.Uint8: "UINT8", onnx.Uint16: "UINT16", onnx.Uint32: "UINT32", onnx.Uint64: "UINT64", onnx.Int8: "INT8",
	onnx.Int16: "INT16", onnx.Int32: "INT32", onnx.Int64: "INT64", onnx.Float16: "FP16", onnx.Float: "FP32", onnx.Double: "FP64", onnx.BFloat16: "BF16",
}

var typesOf = func() map[string]onnx.DataType {
	m := map[string]onnx.DataType{}
	for kind, name := range datatypes {
		m[name] = kind
	}
	return m
}()
