// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
)

// Compressed messages that grow when they are read are the cheapest way to make a
// server hold memory. Only as many are read at once as there are processors, each
// up to the largest message. After that they are accepted or refused by their
// size.
//
//nolint:gochecknoinits // the only place where grpc-go allows it
func init() {
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	encoding.RegisterCompressor(&inTurn{encoding.GetCompressor(gzip.Name), slots})
	// Official Triton clients also send "deflate", which in gRPC means the zlib
	// format.
	encoding.RegisterCompressor(&inTurn{&deflate{}, slots})
}

// inTurn reads compressed messages while it has a slot.
type inTurn struct {
	encoding.Compressor
	slots chan struct{}
}

// Decompress implements encoding.Compressor.
func (c *inTurn) Decompress(r io.Reader) (io.Reader, error) {
	c.slots <- struct{}{}
	z, err := c.Compressor.Decompress(r)
	if err != nil {
		<-c.slots
		return nil, err
	}
	return &turn{Reader: z, end: sync.OnceFunc(func() { <-c.slots })}, nil
}

// turn is one message that is being read.
type turn struct {
	io.Reader
	end func()
}

// Close ends the turn; grpc-go calls it however reading ended.
func (t *turn) Close() error {
	t.end()
	if c, ok := t.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
