// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/onnx/onnxpb"
)

const (
	// Alignment is that of tensors in a file of external data, so that a loader can map them.
	Alignment = 4096
	// inline is the size from which on initializers become external data; smaller ones stay in the model file.
	inline = 1 << 10
	// DataSuffix is what the name of the file of external data has behind the model's.
	DataSuffix = ".data"
)

// Source gives the elements of tensors. A *Model is one, for its own.
type Source interface {
	Reader(t *Tensor) (io.Reader, error)
	Strings(t *Tensor) ([][]byte, error)
}

// Write writes the model to the file at path, and the elements of its graph's initializers from 1 KiB on to the file beside it with
// the suffix ".data", each aligned to 4096 bytes and streamed from the source: memory does not grow with the weights. Both files
// appear under their names only when they are complete. What the index leaves out (sparse tensors, quantisation annotations) cannot be
// written and is an error; documentation is left out.
func Write(path string, m *Model, source Source) (err error) {
	model, err := os.CreateTemp(filepath.Dir(path), ".onnx-*")
	if err != nil {
		return err
	}
	defer discard(model, &err)
	data, err := os.CreateTemp(filepath.Dir(path), ".onnx-data-*")
	if err != nil {
		return err
	}
	defer discard(data, &err)

	w := writer{source: source, name: filepath.Base(path) + DataSuffix, data: bufio.NewWriterSize(data, 1<<20)}
	message, err := w.model(m)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := w.data.Flush(); err != nil {
		return err
	}
	if proto.Size(message) > math.MaxInt32 {
		return fmt.Errorf("writing %s: its graph alone takes more than the 2 GB of a protobuf message", path)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if _, err := model.Write(encoded); err != nil {
		return err
	}
	if w.at > 0 {
		if err := publish(data, path+DataSuffix); err != nil {
			return err
		}
	} else if err := os.Remove(path + DataSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // of an earlier model with that name
	}
	return publish(model, path)
}

func publish(f *os.File, path string) error {
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// discard closes a temporary file and removes it unless it was published.
func discard(f *os.File, err *error) {
	closing := f.Close()
	removing := os.Remove(f.Name())
	if errors.Is(removing, os.ErrNotExist) {
		removing = nil
	}
	*err = errors.Join(*err, closing, removing)
}

// Marshal is the model as one message with all elements in it: for small models.
func Marshal(m *Model, source Source) ([]byte, error) {
	w := writer{source: source}
	message, err := w.model(m)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(message)
}

// Skeleton is the model as one message without its weights: initializers from 1 KiB on are declared external data, which is nowhere. It is enough for
// what needs a graph's shapes alone.
func Skeleton(m *Model, source Source) ([]byte, error) {
	w := writer{source: source, name: "weights" + DataSuffix, skeleton: true}
	message, err := w.model(m)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(message)
}

// writer makes messages of an index and streams elements into the file of external data.
type writer struct {
	source Source
	name   string
	data   *bufio.Writer // nil: everything goes into the message
	at     int64
	// skeleton says that what would be external data is left out.
	skeleton bool
}

// external streams the tensor's elements behind those that are written already.
func (w *writer) external(t *Tensor) (*onnxpb.TensorProto, error) {
	if gap := -w.at & (Alignment - 1); gap > 0 {
		if _, err := w.data.Write(make([]byte, gap)); err != nil {
			return nil, err
		}
		w.at += gap
	}
	elements, err := w.source.Reader(t)
	if err != nil {
		return nil, err
	}
	n, err := io.Copy(w.data, elements)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if n != t.Bytes() {
		return nil, fmt.Errorf("tensor %q: %d bytes of data, its type and dimensions want %d", t.Name, n, t.Bytes())
	}
	out := &onnxpb.TensorProto{
		Name: t.Name, Dims: t.Dims, DataType: int32(t.Type), DataLocation: 1,
		ExternalData: []*onnxpb.StringStringEntryProto{
			{Key: "location", Value: w.name},
			{Key: "offset", Value: strconv.FormatInt(w.at, 10)},
			{Key: "length", Value: strconv.FormatInt(n, 10)},
		},
	}
	w.at += n
	return out, nil
}

// tensor is a tensor with its elements in the message.
func (w *writer) tensor(t *Tensor) (*onnxpb.TensorProto, error) {
	out := &onnxpb.TensorProto{Name: t.Name, Dims: t.Dims, DataType: int32(t.Type)}
	if t.Type == String {
		var err error
		out.StringData, err = w.source.Strings(t)
		return out, err
	}
	if t.Bytes() > math.MaxInt32 {
		return nil, fmt.Errorf("tensor %q: %d bytes do not fit into a message", t.Name, t.Bytes())
	}
	elements, err := w.source.Reader(t)
	if err != nil {
		return nil, err
	}
	out.RawData, err = io.ReadAll(elements)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if n := int64(len(out.GetRawData())); n != t.Bytes() {
		return nil, fmt.Errorf("tensor %q: %d bytes of data, its type and dimensions want %d", t.Name, n, t.Bytes())
	}
	return out, nil
}

func (w *writer) initializer(t *Tensor, outermost bool) (*onnxpb.TensorProto, error) {
	if outermost && w.skeleton && t.Bytes() >= inline {
		return &onnxpb.TensorProto{
			Name: t.Name, Dims: t.Dims, DataType: int32(t.Type), DataLocation: 1, ExternalData: []*onnxpb.StringStringEntryProto{{Key: "location", Value: w.name}},
		}, nil
	}
	if outermost && w.data != nil && t.Bytes() >= inline {
		return w.external(t)
	}
	return w.tensor(t)
}
