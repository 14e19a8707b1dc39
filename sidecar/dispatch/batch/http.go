// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/grpc/mem"
)

// MostJSON is the length in bytes of the longest JSON part with which a body is kept as it came, for a server's HTTP port. Tensors in JSON are decoded, so that
// keeping them as they came would hold them twice. The binary part is not decoded: its tensors are parts of the body.
const MostJSON = 64 << 10

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

// MarshalHTTP returns the JSON of a request for a server's HTTP port; the data of its inputs, in their order, follow it. All outputs are asked for in binary.
// False: the request has something that is not said in that form here (parameters, tensors in shared memory or without bytes, fields that are not known, a name
// that JSON would escape).
func (r *Request) MarshalHTTP() (document []byte, ok bool) {
	if len(r.Parameters) > 0 || r.ID != "" || len(r.Unknown) > 0 || r.Irregular != "" || r.foreign {
		return nil, false
	}
	document = append(make([]byte, 0, 256), `{"inputs":[`...)
	for i := range r.Inputs {
		t := &r.Inputs[i]
		if len(t.Parameters) > 0 || t.Data.Len() == 0 || !plain(t.Name) || !plain(t.Datatype) {
			return nil, false
		}
		document = append(append(separated(document, i), `{"name":"`...), t.Name...)
		document = append(append(append(document, `","datatype":"`...), t.Datatype...), `","shape":[`...)
		for k, n := range t.Shape {
			document = strconv.AppendInt(separated(document, k), n, 10)
		}
		document = strconv.AppendInt(append(document, `],"parameters":{"binary_data_size":`...), int64(t.Data.Len()), 10)
		document = append(document, "}}"...)
	}
	if len(r.Outputs) == 0 {
		return append(document, `],"parameters":{"binary_data_output":true}}`...), true
	}
	document = append(document, `],"outputs":[`...)
	for i, o := range r.Outputs {
		if len(o.Parameters) > 0 || !plain(o.Name) {
			return nil, false
		}
		document = append(append(separated(document, i), `{"name":"`...), o.Name...)
		document = append(document, `","parameters":{"binary_data":true}}`...)
	}
	return append(document, "]}"...), true
}

// separated appends a comma before every element but the first.
func separated(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}

// plain reports whether JSON has a text as it is.
func plain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// ReadHTTP reads the answer of a server's HTTP port to MarshalHTTP: all its tensors are binary. It consumes the HTTP; the tensors are parts of its body.
func ReadHTTP(h *HTTP) (*Response, error) {
	defer h.Body.Free() // the tensors have references of their own
	end := h.HeaderLength
	if end < 0 {
		end = h.Body.Len()
	}
	var document struct {
		Model      string     `json:"model_name"`
		Version    string     `json:"model_version"`
		Parameters parameters `json:"parameters"`
		Outputs    []struct {
			Name       string  `json:"name"`
			Datatype   string  `json:"datatype"`
			Shape      []int64 `json:"shape"`
			Parameters struct {
				Size *int `json:"binary_data_size"`
			} `json:"parameters"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(h.Body.ReadOnlyData()[:end], &document); err != nil {
		return nil, fmt.Errorf("read the answer of an HTTP port: %w", err)
	}
	r := &Response{Model: document.Model, Version: document.Version, Parameters: document.Parameters}
	for _, o := range document.Outputs {
		size := o.Parameters.Size
		if size == nil || *size < 0 || *size > h.Body.Len()-end || len(r.Outputs) == MaxTensors {
			r.Free()
			return nil, fmt.Errorf("read the answer of an HTTP port for model %q: output %q has no binary data of a size that is there", r.Model, o.Name)
		}
		r.Outputs = append(r.Outputs, Tensor{Name: o.Name, Datatype: o.Datatype, Shape: o.Shape, Data: mem.BufferSlice{h.Body.Slice(end, end+*size)}})
		end += *size
	}
	if end != h.Body.Len() {
		r.Free()
		return nil, fmt.Errorf("read the answer of an HTTP port for model %q: %d bytes belong to no output", r.Model, h.Body.Len()-end)
	}
	return r, nil
}

var errParameter = errors.New("a parameter of the answer is no text, number or boolean")

// parameters are those of an answer in JSON, in their order. Integers are int64_param, as they are where a server's gRPC port gives a model's answer.
type parameters []Parameter

// UnmarshalJSON implements json.Unmarshaler.
func (all *parameters) UnmarshalJSON(document []byte) error {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return errors.Join(err, errParameter)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		value, err := d.Token()
		if err != nil {
			return err
		}
		p, ok := parameterOf(name.(string), value)
		if !ok {
			return fmt.Errorf("%w: %q", errParameter, name)
		}
		*all = append(*all, p)
	}
	return nil
}

func parameterOf(name string, value json.Token) (p Parameter, ok bool) {
	switch v := value.(type) {
	case bool:
		return BoolParameter(name, v), true
	case string:
		return StringParameter(name, v), true
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return Int64Parameter(name, n), true
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return Uint64Parameter(name, n), true
		}
		f, err := v.Float64()
		return DoubleParameter(name, f), err == nil
	}
	return Parameter{}, false
}
