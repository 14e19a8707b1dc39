// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// headerLength is the header of the binary tensor extension: the bytes of JSON before the tensors.
const headerLength = "Inference-Header-Content-Length"

func (h *httpFront) infer(w http.ResponseWriter, r *http.Request, name, version string) {
	m, refusal := h.server.repo.find(name, version)
	if refusal != nil {
		plainError(w, refusal)
		return
	}
	if m.decoupled {
		plainError(w, refuse(codes.Unimplemented, "HTTP end point doesn't support models with decoupled transaction policy"))
		return
	}
	data, err := inflatedBody(w, r)
	if err != nil {
		if e := asError(err); e.Code == codes.Unimplemented {
			w.Header().Set("Accept-Encoding", "gzip, deflate")
		}
		plainError(w, err)
		return
	}
	header, tensors, raw, err := splitBody(data, r.Header.Get(headerLength))
	if err != nil {
		plainError(w, err)
		return
	}
	req := &request{ctx: context.WithoutCancel(r.Context())} // over HTTP a caller that goes stops nothing
	defer req.release()
	wanted := outputForm{all: raw}
	if raw {
		req.raw, req.inputs = true, []tensor{{data: tensors}}
	} else if err := h.readJSON(header, tensors, m, req, &wanted); err != nil {
		jsonError(w, err)
		return
	}
	resp, err := h.server.infer(m, name, version, req)
	if err == nil && resp.err == nil {
		resp.err = m.finish(req, resp)
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // the caller no longer reads the answer
	case err != nil:
		jsonError(w, err)
	case resp.err != nil:
		plainError(w, resp.err)
	default:
		if err := h.answer(w, r, m, req.id, resp, wanted); err != nil {
			plainError(w, err)
		}
	}
}

// inflatedBody reads the body and undoes its Content-Encoding.
func inflatedBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	data, err := body(w, r)
	if err != nil {
		return nil, invalid("failed to read the request body: %v", err)
	}
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return data, nil
	case "gzip", "deflate":
		return inflate(data), nil
	default:
		return nil, refuse(codes.Unimplemented, "Unsupported compression type")
	}
}

// inflate undoes gzip or zlib, whichever it is: Triton does not care which label it has, and takes what it could inflate for all.
func inflate(data []byte) []byte {
	var src io.Reader
	var err error
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		src, err = gzip.NewReader(bytes.NewReader(data))
	} else {
		src, err = zlib.NewReader(bytes.NewReader(data))
	}
	if err != nil {
		return nil
	}
	out, _ := io.ReadAll(io.LimitReader(src, math.MaxInt32)) // up to where it is broken
	return out
}

// splitBody splits a body into the JSON and the tensors behind it. A body without JSON is the raw bytes of the only input.
func splitBody(data []byte, length string) (header, tensors []byte, raw bool, err error) {
	if length == "" {
		if len(data) == 0 {
			return nil, nil, true, nil
		}
		return data, nil, false, nil
	}
	n, _ := strconv.Atoi(triton.LeadingInt(length)) // the nearest int where the number is none
	if n == 0 {
		return nil, data, true, nil
	}
	if n < 0 || n > len(data) {
		return nil, nil, false, invalid("inference header size should be in range (0, %d), got: %d", len(data), n)
	}
	return data[:n], data[n:], false, nil
}

// outputForm says which outputs go back as binary data.
type outputForm struct {
	all    bool     // unless listed as JSON
	binary []string // by name
}

func (f outputForm) isBinary(name string) bool { return f.all || slices.Contains(f.binary, name) }

// readJSON reads the JSON part of a request, in the order in which Triton's front does.
func (h *httpFront) readJSON(header, tensors []byte, m *model, r *request, form *outputForm) error {
	parsed, err := tritonjson.Parse(header)
	if err != nil {
		return err
	}
	doc := parsed.Root()
	if v, ok := doc.Find("id"); ok {
		if r.id, err = v.AsString(); err != nil {
			return unreadable("id", err)
		}
	}
	parameters, _ := doc.Find("parameters")
	if err := readJSONParameters(parameters, r, form); err != nil {
		return err
	}
	inputs, err := list(doc, "inputs")
	if err != nil {
		return err
	}
	for in := range inputs.Elements() {
		var t tensor
		if tensors, err = h.readInput(in, tensors, m, r, &t); err != nil {
			return err
		}
		r.inputs = append(r.inputs, t)
	}
	if len(tensors) > 0 {
		return invalid("unexpected additional input data for model '%s'", m.name)
	}
	if _, ok := doc.Find("outputs"); !ok {
		return nil
	}
	outputs, err := list(doc, "outputs")
	if err != nil {
		return err
	}
	return h.readOutputs(outputs, r, form)
}

func list(doc tritonjson.Value, name string) (tritonjson.Value, error) {
	v, err := doc.Member(name)
	if err == nil {
		err = v.CheckArray()
	}
	if err != nil {
		return v, unreadable(name, err)
	}
	return v, nil
}

// unreadable is how Triton reports a field of the wrong kind: an internal error, so status 500.
func unreadable(name string, err error) error {
	return refuse(codes.Internal, "Unable to parse '%s': %v", name, err)
}

// noParameter reports whether a value can be none of a request's parameters.
func noParameter(v tritonjson.Value) bool {
	kind := v.Kind()
	return kind == tritonjson.Null || kind == tritonjson.Array || kind == tritonjson.Object
}

func readJSONParameters(p tritonjson.Value, r *request, form *outputForm) error {
	for name, v := range p.Members() {
		var err error
		switch name {
		case "sequence_id":
			if n, numErr := v.AsUint(); numErr == nil {
				r.sequence.setNumber(n)
			} else {
				var id string
				if id, err = v.AsString(); err == nil {
					if refusal := r.sequence.setText(id); refusal != nil {
						return refusal
					}
				}
			}
		case "sequence_start":
			r.sequence.start, err = v.AsBool()
		case "sequence_end":
			r.sequence.end, err = v.AsBool()
		case "priority":
			r.priority, err = v.AsUint()
		case "timeout":
			var us uint64
			us, err = v.AsUint()
			r.timeout = microseconds(us)
		case "binary_data_output":
			form.all, err = v.AsBool()
		default:
			if strings.HasPrefix(name, "triton_") {
				return invalid("parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.")
			}
			if noParameter(v) {
				return invalid("parameter '%s' has invalid type. It should be either 'int', 'bool', or 'string'.", name)
			}
		}
		if err != nil {
			return unreadable(name, err)
		}
	}
	return nil
}

func textMember(v tritonjson.Value, name string) (string, error) {
	m, err := v.Member(name)
	if err == nil {
		var s string
		if s, err = m.AsString(); err == nil {
			return s, nil
		}
	}
	return "", unreadable(name, err)
}

// readOutputs reads the requested outputs. Once there is a list, binary_data_output says nothing.
func (h *httpFront) readOutputs(outputs tritonjson.Value, r *request, form *outputForm) error {
	for o := range outputs.Elements() {
		form.all = false
		name, err := textMember(o, "name")
		if err != nil {
			return err
		}
		p, _ := o.Find("parameters")
		want, binary, err := h.readOutput(p, name)
		if err != nil {
			return err
		}
		r.hold(want.place)
		r.outputs = append(r.outputs, want)
		if binary {
			form.binary = append(form.binary, name)
		}
	}
	return nil
}

// readOutput reads what a request says about one of its outputs: where or in what form it goes.
func (h *httpFront) readOutput(p tritonjson.Value, name string) (want requestedOutput, binary bool, err error) {
	want.name = name
	asBinary, formed := p.Find("binary_data")
	if formed {
		if binary, err = asBinary.AsBool(); err != nil {
			return want, false, unreadable("binary_data", err)
		}
	}
	classes, classified := p.Find("classification")
	if _, shared := p.Find("shared_memory_region"); shared {
		for _, other := range [...]struct {
			name string
			set  bool
		}{{"classification", classified}, {"binary_data", formed}} {
			if other.set {
				return want, false, invalid("Output can't set both 'shared_memory_region' and '%s'", other.name)
			}
		}
		want.place, err = h.place(p)
		return want, false, err
	}
	if classified {
		n, err := classes.AsUint()
		if err != nil {
			return want, false, refuse(codes.Internal, "Unable to set 'classification': %v", err)
		}
		want.classes = uint32(n)
	}
	return want, binary, nil
}

// place reads where in shared memory a tensor is. A size that is left out is zero bytes, which no region has.
func (h *httpFront) place(p tritonjson.Value) (*placement, error) {
	in, _ := p.Find("shared_memory_region")
	region, err := in.AsString()
	if err != nil {
		return nil, unreadable("shared_memory_region", err)
	}
	var offset, size uint64
	for _, f := range [...]struct {
		name string
		into *uint64
	}{{"shared_memory_offset", &offset}, {"shared_memory_byte_size", &size}} {
		if v, ok := p.Find(f.name); ok {
			if *f.into, err = v.AsUint(); err != nil {
				return nil, unreadable(f.name, err)
			}
		}
	}
	place, refusal := h.server.regions.place(region, offset, size)
	if refusal != nil {
		return nil, refusal
	}
	return place, nil
}

// answer writes a response: JSON, with the outputs that were asked for in binary behind it.
func (h *httpFront) answer(w http.ResponseWriter, r *http.Request, m *model, id string, resp *response, form outputForm) error {
	b := []byte{'{'}
	if id != "" {
		b = append(tritonjson.AppendString(append(b, `"id":`...), id), ',')
	}
	b = tritonjson.AppendString(append(b, `"model_name":`...), m.name)
	b = tritonjson.AppendString(append(b, `,"model_version":`...), m.versionString())
	if len(resp.parameters) > 0 {
		b = append(b, `,"parameters":{`...)
		for i, p := range resp.parameters {
			if i > 0 {
				b = append(b, ',')
			}
			b = p.appendJSON(append(tritonjson.AppendString(b, p.name), ':'))
		}
		b = append(b, '}')
	}
	b = append(b, `,"outputs":[`...)
	parts, size := make([][]byte, 1, 1+len(resp.outputs)), 0
	for i, t := range resp.outputs {
		if i > 0 {
			b = append(b, ',')
		}
		b = tritonjson.AppendString(append(b, `{"name":`...), t.name)
		b = tritonjson.AppendString(append(b, `,"datatype":`...), triton.DatatypeName(t.dtype))
		b = tritonjson.AppendShape(append(b, `,"shape":`...), t.shape)
		if t.placed {
			b = append(b, '}')
			continue
		}
		if form.isBinary(t.name) {
			b = fmt.Appendf(b, `,"parameters":{"binary_data_size":%d}}`, len(t.data))
			parts, size = append(parts, t.data), size+len(t.data)
			continue
		}
		if t.dtype == pb.DataType_TYPE_FP16 || t.dtype == pb.DataType_TYPE_BF16 {
			return invalid("sending %s data via JSON is not supported. Please use the binary data format for output", triton.DatatypeName(t.dtype))
		}
		b = append(appendJSONData(append(b, `,"data":`...), t), '}')
	}
	b = append(b, "]}"...)
	parts[0] = b
	contentType := "application/json"
	if size > 0 {
		contentType = "application/octet-stream"
		w.Header().Set(headerLength, strconv.Itoa(len(b)))
	}
	if encoding := acceptedEncoding(r.Header.Get("Accept-Encoding")); encoding != "" {
		w.Header().Set("Content-Encoding", encoding)
		parts = [][]byte{deflate(encoding, parts)}
	}
	write(w, http.StatusOK, contentType, parts...)
	return nil
}

func (p responseParameter) appendJSON(b []byte) []byte {
	switch v := p.value.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	default:
		return tritonjson.AppendString(b, v.(string))
	}
}

func acceptedEncoding(accept string) string {
	for _, encoding := range [...]string{"gzip", "deflate"} {
		if strings.Contains(accept, encoding) {
			return encoding
		}
	}
	return ""
}

func deflate(encoding string, parts [][]byte) []byte {
	var b bytes.Buffer
	var w io.WriteCloser = zlib.NewWriter(&b)
	if encoding == "gzip" {
		w = gzip.NewWriter(&b)
	}
	for _, p := range parts {
		_, _ = w.Write(p) // a bytes.Buffer takes everything
	}
	_ = w.Close()
	return b.Bytes()
}
