// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

var errTooLarge = errors.New("body too large")

// inferenceBody reads and decompresses a body; the returned buffer must be freed. If it cannot, it answers the request itself and calls
// Options.Refused.
func (h *Handler) inferenceBody(w nethttp.ResponseWriter, r *nethttp.Request, rt route) (mem.Buffer, bool) {
	encoding := "identity"
	if values := r.Header["Content-Encoding"]; len(values) > 0 {
		encoding = values[0]
	}
	switch encoding {
	case "identity", "gzip", "deflate":
	default:
		h.refused(r, rt, nil)
		w.Header().Set("Accept-Encoding", "gzip, deflate")
		fail(w, nethttp.StatusNotImplemented, plainType, "Unsupported compression type")
		return nil, false
	}
	body, err := h.readBody(w, r)
	if err != nil {
		h.refused(r, rt, unread(err))
		h.failBody(w, err)
		return nil, false
	}
	if encoding != "identity" {
		if body.Len() == 0 {
			body.Free()
			h.refused(r, rt, nil)
			fail(w, nethttp.StatusBadRequest, plainType, "nothing to be decompressed")
			return nil, false
		}
		compressed := body
		h.inflating <- struct{}{}
		body, err = decompress(compressed.ReadOnlyData(), h.o.MaxBodyBytes)
		<-h.inflating
		compressed.Free()
	}
	if err != nil {
		h.refused(r, rt, nil)
		h.failBody(w, err)
		return nil, false
	}
	return body, true
}

// unread returns the cause for Options.Refused of a body that could not be read.
func unread(err error) error {
	var network *net.OpError
	switch _, limit := status.FromError(err); {
	case limit:
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network) && !network.Timeout():
		return status.FromContextError(context.Canceled).Err()
	}
	return nil
}

func (h *Handler) failBody(w nethttp.ResponseWriter, err error) {
	w.Header().Set("Connection", "close")
	if s, ok := status.FromError(err); ok {
		fail(w, httpCode(s.Code()), plainType, s.Message())
		return
	}
	if errors.Is(err, errTooLarge) {
		fail(w, nethttp.StatusBadRequest, plainType, fmt.Sprintf("request body exceeds the maximum of %d bytes", h.o.MaxBodyBytes))
		return
	}
	// Triton uses what it could decompress as the body, and answers with an error
	// in JSON, as for any body that it cannot read.
	fail(w, nethttp.StatusBadRequest, jsonType, "failed to read the request body: "+err.Error())
}

// Steps in which the buffer for a body grows: what is held for a client is in
// proportion to what the client has sent, and little is copied twice.
const (
	firstRead = 64 << 10
	growth    = 16
)

// readBody reads a whole body into one pooled buffer. Until it is whole, the gate counts it.
func (h *Handler) readBody(w nethttp.ResponseWriter, r *nethttp.Request) (mem.Buffer, error) {
	body, err := h.receive(w, r)
	if err == nil {
		// Not after a failure: net/http then reads on, and the client may send
		// nothing.
		endReading(w)
	}
	return body, err
}

func (h *Handler) receive(w nethttp.ResponseWriter, r *nethttp.Request) (mem.Buffer, error) {
	declared := r.ContentLength
	switch {
	case declared == 0:
		return mem.SliceBuffer(nil), nil
	case declared > h.o.MaxBodyBytes:
		return nil, errTooLarge
	}
	conn := gate.ConnOf(r.Context())
	limit := declared
	if declared < 0 {
		limit = h.o.MaxBodyBytes + 1 // one more shows that it is too large
	}
	var buf *[]byte
	held, n := 0, 0
	defer func() { conn.Release(held) }()
	for size := min(limit, firstRead); ; size = min(limit, size*growth) {
		if err := conn.Hold(int(size) - held); err != nil {
			h.put(buf)
			return nil, err
		}
		held = int(size)
		next := h.o.Pool.Get(held)
		if buf != nil {
			copy(*next, (*buf)[:n])
			h.put(buf)
		}
		buf = next
		err := h.fill(w, r, *buf, &n)
		switch {
		case err == io.EOF && declared < 0: //nolint:errorlint // readers return it unwrapped
			*buf = (*buf)[:n]
			return mem.NewBuffer(buf, h.o.Pool), nil
		case err == io.EOF: //nolint:errorlint // as above
			err = io.ErrUnexpectedEOF
		}
		if err == nil && int64(n) == limit && declared < 0 {
			err = errTooLarge
		}
		if err != nil {
			h.put(buf)
			return nil, err
		}
		if int64(n) == declared {
			return mem.NewBuffer(buf, h.o.Pool), nil
		}
	}
}

func (h *Handler) put(buf *[]byte) {
	if buf != nil {
		h.o.Pool.Put(buf)
	}
}

// fill reads until into is full from n on, with the patience for every part.
func (h *Handler) fill(w nethttp.ResponseWriter, r *nethttp.Request, into []byte, n *int) error {
	for *n < len(into) {
		got, err := r.Body.Read(into[*n:])
		*n += got
		if *n == len(into) {
			return nil // an end that comes with the last byte comes again
		}
		if err != nil {
			return err
		}
		if h.o.Patience > 0 {
			extendReading(w, time.Now().Add(h.o.Patience))
		}
	}
	return nil
}

// extendReading sets the time until which the next part of a body must come.
func extendReading(w nethttp.ResponseWriter, until time.Time) {
	if d, ok := w.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(until) // a connection that has gone fails the next read
	}
}

// endReading clears the server's ReadTimeout: from here on the client waits for
// the answer.
func endReading(w nethttp.ResponseWriter) { extendReading(w, time.Time{}) }

func readLimited(r io.Reader, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	n, err := buf.ReadFrom(io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		err = errTooLarge
	}
	return buf.Bytes(), err
}

// decompress decompresses gzip or zlib, whichever the data is: Triton, too, decides by the data and not by the label. As Triton does, it takes what came
// out before an error for all: data that are cut or broken give a text that is cut, data of another kind none, and checksums do not count.
func decompress(data []byte, limit int64) (mem.Buffer, error) {
	var reader io.Reader
	var err error
	if len(data) > 1 && data[0] == 0x1f && data[1] == 0x8b {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
			z.Multistream(false) // what follows the first member is ignored
			reader = z
		}
	} else {
		reader, err = zlib.NewReader(bytes.NewReader(data))
	}
	if err != nil {
		return mem.SliceBuffer(nil), nil //nolint:nilerr // see above
	}
	all, err := readLimited(reader, limit)
	if errors.Is(err, errTooLarge) {
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
	number := triton.LeadingInt(values[0])
	if number == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n > bodyLen {
		return 0, &headerError{status.Errorf(codes.InvalidArgument,
			"inference header size should be in range (0, %d), got: %s", bodyLen, values[0])}
	}
	return n, nil
}

// headerError is an error in the headers, found before the body is read; Triton labels such answers text/plain.
type headerError struct{ error }

// responseEncoding chooses how to compress an answer: of gzip, deflate and identity the one with the highest weight, the
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
