// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import "google.golang.org/grpc/mem"

// MostHTTP is the length in bytes of the longest body that is kept as it came, for a server's HTTP port. A tritonserver answers
// a larger one a little sooner over gRPC (`make bench BENCH=proxy-triton`).
const MostHTTP = 64 << 10

// HTTP is a request for inference, or its answer, as HTTP/1.1 has it: JSON, followed by the tensors in binary (Triton's "Binary Data Extension").
type HTTP struct {
	// Body is uncompressed. The HTTP has a reference to it.
	Body mem.Buffer
	// HeaderLength is how much of the body is JSON, as Inference-Header-Content-Length says; negative: there is no such field, and all of it is.
	HeaderLength int
}

// free gives the body back. It returns nil.
func (h *HTTP) free() *HTTP {
	if h != nil {
		h.Body.Free()
	}
	return nil
}
