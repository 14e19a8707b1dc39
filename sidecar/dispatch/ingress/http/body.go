// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

var errTooLarge = errors.New("body too large")

// inferenceBody reads and decompresses a body; what it returns must be freed. It answers itself if it cannot.
func (h *Handler) inferenceBody(w nethttp.ResponseWriter, r *nethttp.Request) (mem.Buffer, bool) {
	encoding := "identity"
	if values := r.Header["Content-Encoding"]; len(values) > 0 {
		encoding = values[0]
	}
	switch encoding {
	case "identity", "gzip", "deflate":
	default:
		w.Header().Set("Accept-Encoding", "gzip, deflate")
		fail(w, nethttp.StatusNotImplemented, plainType, "Unsupported compression type")
		return nil, false
	}
	body, err := h.readBody(r)
	if err == nil && encoding != "identity" {
		if body.Len() == 0 {
			body.Free()
			fail(w, nethttp.StatusBadRequest, plainType, "nothing to be decompressed")
			return nil, false
		}
		compressed := body
		body, err = decompress(compressed.ReadOnlyData(), h.o.MaxBodyBytes)
		compressed.Free()
	}
	if err != nil {
		h.failBody(w, err)
		return nil, false
	}
	return body, true
}

func (h *Handler) failBody(w nethttp.ResponseWriter, err error) {
	message := "failed to read the request body: " + err.Error()
	if errors.Is(err, errTooLarge) {
		message = fmt.Sprintf("request body exceeds the maximum of %d bytes", h.o.MaxBodyBytes)
	}
	w.Header().Set("Connection", "close")
	fail(w, nethttp.StatusBadRequest, plainType, message)
}

// readBody reads a whole body into one pooled buffer.
func (h *Handler) readBody(r *nethttp.Request) (mem.Buffer, error) {
	switch n := r.ContentLength; {
	case n == 0:
		return mem.SliceBuffer(nil), nil
	case n > h.o.MaxBodyBytes:
		return nil, errTooLarge
	case n > 0:
		buf := h.o.Pool.Get(int(n))
		if _, err := io.ReadFull(r.Body, *buf); err != nil {
			h.o.Pool.Put(buf)
			return nil, err
		}
		return mem.NewBuffer(buf, h.o.Pool), nil
	}
	all, err := readLimited(r.Body, h.o.MaxBodyBytes)
	return mem.SliceBuffer(all), err
}

func readLimited(r io.Reader, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	n, err := buf.ReadFrom(io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		err = errTooLarge
	}
	return buf.Bytes(), err
}

// decompress undoes gzip or zlib, whichever it is: Triton goes by the data and not by the label, too.
func decompress(data []byte, limit int64) (mem.Buffer, error) {
	var reader io.Reader
	if len(data) > 1 && data[0] == 0x1f && data[1] == 0x8b {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		z.Multistream(false) // what follows the first member is ignored
		reader = z
	} else {
		z, err := zlib.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("deflate: %w", err)
		}
		reader = z
	}
	all, err := readLimited(reader, limit)
	if err != nil {
		return nil, err
	}
	return mem.SliceBuffer(all), nil
}

const inferenceHeader = "Inference-Header-Content-Length"

// inferenceHeaderLength is how many of the body's first bytes are JSON; 0 means that the whole body is the data of the
// model's one input. Without the header everything is JSON; of its value the leading number counts, and none is 0.
func inferenceHeaderLength(head nethttp.Header, bodyLen int) (int, error) {
	values := head[inferenceHeader]
	if len(values) == 0 {
		return bodyLen, nil
	}
	text := strings.TrimLeft(values[0], " \t")
	end := 0
	for end < len(text) && (text[end] >= '0' && text[end] <= '9' || (end == 0 && (text[end] == '-' || text[end] == '+'))) {
		end++
	}
	if end == 0 {
		return 0, nil
	}
	n, err := strconv.Atoi(text[:end])
	if err != nil || n < 0 || n > bodyLen {
		return 0, &headerError{status.Errorf(codes.InvalidArgument,
			"inference header size should be in range (0, %d), got: %s", bodyLen, values[0])}
	}
	return n, nil
}

// headerError is found before the body is looked at; Triton labels such answers text/plain.
type headerError struct{ error }

// responseEncoding chooses how to compress an answer: of gzip, deflate and identity the one that weighs most, the
// first of equals.
func responseEncoding(head nethttp.Header) string {
	values := head["Accept-Encoding"]
	if len(values) == 0 {
		return "identity"
	}
	chosen, heaviest := "identity", 0.0
	for item := range strings.SplitSeq(values[0], ",") {
		name, q, weighted := strings.Cut(strings.TrimLeft(item, " "), ";q=")
		weight := 1.0
		if weighted {
			f, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
			if err != nil {
				continue
			}
			weight = f
		}
		if (name == "gzip" || name == "deflate" || name == "identity") && weight > heaviest {
			chosen, heaviest = name, weight
		}
	}
	return chosen
}
