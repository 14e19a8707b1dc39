// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// readInput reads one input: its data stand in the JSON, or are the next bytes behind it. It returns the bytes that are left.
func (h *httpFront) readInput(in tritonjson.Value, rest []byte, m *model, r *request, t *tensor) ([]byte, error) {
	var err error
	if t.name, err = textMember(in, "name"); err != nil {
		return nil, err
	}
	datatype, err := textMember(in, "datatype")
	if err != nil {
		return nil, err
	}
	if t.dtype = datatypeByName(datatype); t.dtype == pb.DataType_TYPE_INVALID {
		return nil, invalid("invalid datatype for input %s", t.name)
	}
	shape, err := list(in, "shape")
	if err != nil {
		return nil, err
	}
	t.shape = []int64{}
	for d := range shape.Elements() {
		n, err := d.AsUint()
		if err != nil {
			return nil, unreadable("shape", err)
		}
		t.shape = append(t.shape, int64(n))
	}
	return h.readData(in, rest, m, r, t)
}

func (h *httpFront) readData(in tritonjson.Value, rest []byte, m *model, r *request, t *tensor) ([]byte, error) {
	p, _ := in.Find("parameters")
	data, given := in.Find("data")
	size, binary := p.Find("binary_data_size")
	_, shared := p.Find("shared_memory_region")
	var set []string
	for _, f := range [...]struct {
		name string
		is   bool
	}{{"'data'", given}, {"'binary_data_size'", binary}, {"'shared_memory_region'", shared}} {
		if f.is {
			set = append(set, f.name)
		}
	}
	if len(set) != 1 {
		but := "But no field is set"
		if len(set) > 1 {
			but = "But set " + strings.Join(set, " ")
		}
		return nil, invalid("Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. %s", but)
	}
	switch {
	case binary:
		n, err := size.AsUint()
		if err != nil {
			return nil, unreadable("binary_data_size", err)
		}
		if n > uint64(len(rest)) {
			return nil, invalid("unexpected size for input '%s', expecting %d additional bytes for model '%s'", t.name, n-uint64(len(rest)), m.name)
		}
		t.data = rest[:n:n]
		return rest[n:], nil
	case shared:
		place, err := h.place(p)
		if err != nil {
			return nil, err
		}
		r.hold(place)
		m.load(t, place)
		return rest, nil
	}
	if err := readElements(t, data, elements(t.shape)); err != nil {
		return nil, err
	}
	return rest, nil
}

// readElements reads a tensor of so many elements out of arrays of any depth.
func readElements(t *tensor, data tritonjson.Value, count int64) (err error) {
	if t.dtype == pb.DataType_TYPE_FP16 || t.dtype == pb.DataType_TYPE_BF16 {
		return invalid("receiving %s data via JSON is not supported. Please use the binary data format for input %s", triton.DatatypeName(t.dtype), t.name)
	}
	if err = data.CheckArray(); err == nil {
		if err = tritonjson.ErrShape; count >= 0 && !overflows(t.shape) || t.dtype == pb.DataType_TYPE_STRING {
			t.data, err = tritonjson.ReadTensor(data, triton.DatatypeName(t.dtype), count)
		}
	}
	switch {
	case err == nil:
		return nil
	case t.dtype == pb.DataType_TYPE_STRING:
		return refuse(codes.Internal, "Unable to parse JSON bytes array: %v", err)
	}
	return unreadable("data", err)
}

// appendJSONData writes a tensor's elements as one flat array.
func appendJSONData(b []byte, t tensor) []byte {
	b, _ = tritonjson.AppendTensor(append(b, '['), triton.DatatypeName(t.dtype), t.data, elements(t.shape)) // what models return was checked
	return append(b, ']')
}
