// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"

	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
)

// mostGraph bounds what a graph of the directory unpacks to.
const mostGraph = 64 << 20

// Graph reads graphs/NAME.onnx.gz of a file system (estimator/data): an architecture without weights.
func Graph(fsys fs.FS, name string) (*shape.Graph, error) {
	f, err := fsys.Open("graphs/" + name + ".onnx.gz")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	text, err := io.ReadAll(io.LimitReader(z, mostGraph))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	m, err := onnx.Read(bytes.NewReader(text), int64(len(text)), name+".onnx", onnx.DefaultLimits())
	if err != nil {
		return nil, err
	}
	return shape.Compile(m)
}
