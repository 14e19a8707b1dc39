// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"encoding/json"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
)

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

// CodeOfHTTP is the gRPC code of an answer of a server's HTTP port with this status. Triton answers with four statuses of their own and one for all other
// codes; of these, INVALID_ARGUMENT is the one that says nothing against the server (forward.Faulted). Known is false for a status that Triton does not
// answer a request for inference with.
func CodeOfHTTP(status int) (code codes.Code, known bool) {
	switch status {
	case http.StatusBadRequest:
		return codes.InvalidArgument, true
	case http.StatusNotFound:
		return codes.NotFound, true
	case http.StatusInternalServerError:
		return codes.Internal, true
	case http.StatusNotImplemented:
		return codes.Unimplemented, true
	case http.StatusServiceUnavailable:
		return codes.Unavailable, true
	}
	return codes.Unknown, false
}

// ErrorOfHTTP reads the document that Triton's HTTP port reports an error by: {"error":"..."} and nothing else.
func ErrorOfHTTP(document []byte) (text string, ok bool) {
	var members map[string]string
	if json.Unmarshal(document, &members) != nil || len(members) != 1 {
		return "", false
	}
	text, ok = members["error"]
	return text, ok
}

// free gives the body back. It returns nil.
func (h *HTTP) free() *HTTP {
	if h != nil {
		h.Body.Free()
	}
	return nil
}
