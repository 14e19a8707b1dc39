// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"io"
	"sync"

	"github.com/klauspost/compress/zlib"
)

// deflate is the zlib format.
type deflate struct{ writers sync.Pool }

// Name implements encoding.Compressor.
func (*deflate) Name() string { return "deflate" }

// Compress implements encoding.Compressor.
func (c *deflate) Compress(w io.Writer) (io.WriteCloser, error) {
	if z, ok := c.writers.Get().(*deflateWriter); ok {
		z.Reset(w)
		return z, nil
	}
	return &deflateWriter{Writer: zlib.NewWriter(w), pool: &c.writers}, nil
}

// Decompress implements encoding.Compressor.
func (*deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }

type deflateWriter struct {
	*zlib.Writer
	pool *sync.Pool
}

// Close ends the message and keeps the writer for the next one.
func (w *deflateWriter) Close() error {
	defer w.pool.Put(w)
	return w.Writer.Close()
}
