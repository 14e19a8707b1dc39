// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"errors"
	"io"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

// writeResponse renders an answer: JSON, followed by the binary outputs in order if there are any.
func (h *Handler) writeResponse(w nethttp.ResponseWriter, r *nethttp.Request, in *inference, response *batch.Response) {
	head, binary, err := in.parts(response)
	if err != nil {
		failStatus(w, plainType, err)
		return
	}
	size := len(head)
	for _, b := range binary {
		size += b.Len()
	}
	header := w.Header()
	if len(binary) > 0 || response.HTTP != nil && response.HTTP.HeaderLength >= 0 {
		header["Content-Type"] = []string{binaryType}
		header[inferenceHeader] = []string{strconv.Itoa(len(head))}
	} else {
		header["Content-Type"] = []string{jsonType}
	}
	conn := gate.ConnOf(r.Context())
	conn.Owe(size)
	defer conn.Release(size)
	var out io.Writer = w
	encoding := responseEncoding(r.Header)
	if pool := h.compressors[encoding]; pool != nil {
		header["Content-Encoding"] = []string{encoding}
		z := pool.Get().(flateWriter)
		z.Reset(w)
		defer func() {
			_ = z.Close() // a caller that has gone needs no answer
			z.Reset(nil)
			pool.Put(z)
		}()
		out = z
	} else {
		header["Content-Length"] = []string{strconv.Itoa(size)}
	}
	w.WriteHeader(nethttp.StatusOK)
	if _, err := out.Write(head); err != nil {
		return
	}
	for _, b := range binary {
		if _, err := out.Write(b.ReadOnlyData()); err != nil {
			return
		}
	}
}

// flateWriter is the common interface of gzip's and zlib's writers; they are large and kept for reuse.
type flateWriter interface {
	io.WriteCloser
	Reset(io.Writer)
}

func newCompressors() map[string]*sync.Pool {
	return map[string]*sync.Pool{
		"gzip":    {New: func() any { return gzip.NewWriter(nil) }},
		"deflate": {New: func() any { return zlib.NewWriter(nil) }},
	}
}

// parts returns the JSON of an answer and the buffers that follow it, which belong to the response: as the server's HTTP port has given them, or rendered.
func (in *inference) parts(response *batch.Response) (head []byte, binary mem.BufferSlice, err error) {
	h := response.HTTP
	if h == nil {
		return in.render(response)
	}
	body := h.Body.ReadOnlyData()
	if h.HeaderLength < 0 || h.HeaderLength == len(body) {
		return body, nil, nil
	}
	return body[:h.HeaderLength], mem.BufferSlice{mem.SliceBuffer(body[h.HeaderLength:])}, nil
}

// render returns the JSON of an answer and the buffers that follow it, which belong to the response.
func (in *inference) render(response *batch.Response) (head []byte, binary mem.BufferSlice, err error) {
	head = make([]byte, 0, 512)
	head = append(head, '{')
	id := response.ID
	if id == "" {
		id = in.id
	}
	if id != "" {
		head = append(tritonjson.AppendString(append(head, `"id":`...), id), ',')
	}
	head = tritonjson.AppendString(append(head, `"model_name":`...), response.Model)
	head = tritonjson.AppendString(append(head, `,"model_version":`...), response.Version)
	if len(response.Parameters) > 0 {
		if head, err = appendParameters(append(head, `,"parameters":`...), response.Parameters); err != nil {
			return nil, nil, err
		}
	}
	head = append(head, `,"outputs":[`...)
	for i := range response.Outputs {
		if i > 0 {
			head = append(head, ',')
		}
		output := &response.Outputs[i]
		head = tritonjson.AppendString(append(head, `{"name":`...), output.Name)
		head = tritonjson.AppendString(append(head, `,"datatype":`...), output.Datatype)
		head = tritonjson.AppendShape(append(head, `,"shape":`...), output.Shape)
		asBinary, named := in.named[output.Name]
		switch {
		case output.SharedMemory() || in.inMemory(output.Name): // Triton's gRPC answer may lack the parameter
		case asBinary || (!named && in.binary):
			head = strconv.AppendInt(append(head, `,"parameters":{"binary_data_size":`...), int64(output.Data.Len()), 10)
			head = append(head, '}')
			for _, b := range output.Data {
				if b.Len() > 0 {
					binary = append(binary, b)
				}
			}
		default:
			if head, err = appendData(append(head, `,"data":[`...), output); err != nil {
				return nil, nil, err
			}
			head = append(head, ']')
		}
		head = append(head, '}')
	}
	return append(head, "]}"...), binary, nil
}

// inMemory reports whether the caller wants an output in a shared memory region.
func (in *inference) inMemory(output string) bool {
	for i := range in.request.Outputs {
		if o := &in.request.Outputs[i]; o.Name == output {
			_, ok := batch.FindParameter(o.Parameters, batch.ParameterSharedMemoryRegion)
			return ok
		}
	}
	return false
}

func appendParameters(dst []byte, list []batch.Parameter) ([]byte, error) {
	dst = append(dst, '{')
	for i, p := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(tritonjson.AppendString(dst, p.Name), ':')
		if b, ok := p.Bool(); ok {
			dst = strconv.AppendBool(dst, b)
		} else if n, ok := p.Int64(); ok {
			dst = strconv.AppendInt(dst, n, 10)
		} else if n, ok := p.Uint64(); ok {
			dst = strconv.AppendUint(dst, n, 10)
		} else if f, ok := p.Double(); ok {
			dst = tritonjson.AppendDouble(dst, f)
		} else if s, ok := p.Text(); ok {
			dst = tritonjson.AppendString(dst, s)
		} else {
			return nil, status.Errorf(codes.Internal, "response parameter '%s' has no value", p.Name)
		}
	}
	return append(dst, '}'), nil
}

func appendData(dst []byte, output *batch.Tensor) ([]byte, error) {
	if output.Datatype == "FP16" || output.Datatype == "BF16" {
		return nil, status.Errorf(codes.InvalidArgument,
			"sending %s data via JSON is not supported. Please use the binary data format for output", output.Datatype)
	}
	count, ok := triton.Elements(output.Shape)
	var raw []byte
	switch len(output.Data) {
	case 0:
	case 1:
		raw = output.Data[0].ReadOnlyData()
	default:
		raw = output.Data.Materialize() // elements may straddle buffers
	}
	err := tritonjson.ErrTensorSize
	if ok {
		dst, err = tritonjson.AppendTensor(dst, output.Datatype, raw, count)
	}
	switch {
	case errors.Is(err, tritonjson.ErrTensorSize):
		return nil, status.Errorf(codes.Internal, "output tensor shape does not match size of output for '%s'", output.Name)
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, "Invalid data type for output tensor")
	}
	return dst, nil
}

// failInfer answers a request that was refused or failed. Triton labels refusals before queueing as JSON and a model's
// errors as text; the error's text shows which it was.
func failInfer(w nethttp.ResponseWriter, err error) {
	contentType := plainType
	message := status.Convert(err).Message()
	for _, refusal := range []string{"[request id: ", "unexpected inference ", "inference request ", "Unable to find ", "Invalid offset ",
		"string correlation ID ", "Exceeds maximum queue size"} {
		if strings.HasPrefix(message, refusal) || strings.Contains(message, "] "+refusal) {
			contentType = jsonType
		}
	}
	failStatus(w, contentType, err)
}
