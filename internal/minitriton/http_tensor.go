// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// readInput reads one input: its data stand in the JSON, or are the next bytes behind it. It returns the bytes that are left.
func (h *httpFront) readInput(in jsonValue, rest []byte, m *model, r *request, t *tensor) ([]byte, error) {
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
	t.shape = make([]int64, len(shape))
	for i, d := range shape {
		n, err := d.asUint()
		if err != nil {
			return nil, unreadable("shape", err)
		}
		t.shape[i] = int64(n)
	}
	return h.readData(in, rest, m, r, t)
}

func (h *httpFront) readData(in jsonValue, rest []byte, m *model, r *request, t *tensor) ([]byte, error) {
	p := in.get("parameters")
	data, size, region := in.get("data"), p.get("binary_data_size"), p.get("shared_memory_region")
	var set []string
	for _, f := range [...]struct {
		name  string
		value jsonValue
	}{{"'data'", data}, {"'binary_data_size'", size}, {"'shared_memory_region'", region}} {
		if f.value.present {
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
	case size.present:
		n, err := size.asUint()
		if err != nil {
			return nil, unreadable("binary_data_size", err)
		}
		if n > uint64(len(rest)) {
			return nil, invalid("unexpected size for input '%s', expecting %d additional bytes for model '%s'", t.name, n-uint64(len(rest)), m.name)
		}
		t.data = rest[:n:n]
		return rest[n:], nil
	case region.present:
		place, err := h.place(p)
		if err != nil {
			return nil, err
		}
		r.hold(place)
		m.load(t, place)
		return rest, nil
	case t.dtype == pb.DataType_TYPE_FP16 || t.dtype == pb.DataType_TYPE_BF16:
		return nil, invalid("receiving %s data via JSON is not supported. Please use the binary data format for input %s", triton.DatatypeName(t.dtype), t.name)
	case t.dtype == pb.DataType_TYPE_STRING:
		var err error
		if t.data, err = appendJSONStrings(nil, data); err != nil {
			return nil, refuse(codes.Internal, "Unable to parse JSON bytes array: %v", err)
		}
		return rest, nil
	default:
		var err error
		if t.data, err = jsonNumbers(data, t); err != nil {
			return nil, unreadable("data", err)
		}
		return rest, nil
	}
}

// appendJSONStrings flattens strings in arrays of any depth into a BYTES tensor.
func appendJSONStrings(b []byte, v jsonValue) ([]byte, error) {
	items, err := v.asArray()
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if item.kind == jsonArray {
			b, err = appendJSONStrings(b, item)
		} else {
			var s string
			if s, err = item.asString(); err == nil {
				b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// errTrueShape has Triton's words.
var errTrueShape = &Error{Code: codes.Internal, Message: "Shape does not match true shape of 'data' field"}

// jsonNumbers flattens elements in arrays of any depth. There must be as many as the shape says.
func jsonNumbers(v jsonValue, t *tensor) ([]byte, error) {
	size := int(triton.ElementSize(t.dtype))
	n, err := count(v)
	if err != nil {
		return nil, err
	}
	b, err := appendNumbers(make([]byte, 0, n*size), v, t.dtype, size)
	if err != nil {
		return nil, err
	}
	if overflows(t.shape) || elements(t.shape) != int64(n) {
		return nil, errTrueShape
	}
	return b, nil
}

// count counts the leaves of an array.
func count(v jsonValue) (int, error) {
	items, err := v.asArray()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, item := range items {
		if item.kind != jsonArray {
			n++
			continue
		}
		k, _ := count(item) // an array has leaves to count
		n += k
	}
	return n, nil
}

func appendNumbers(b []byte, v jsonValue, dtype pb.DataType, size int) ([]byte, error) {
	var err error
	for _, item := range v.items {
		if item.kind == jsonArray {
			if b, err = appendNumbers(b, item, dtype, size); err != nil {
				return nil, err
			}
			continue
		}
		bits, err := elementBits(item, dtype)
		if err != nil {
			return nil, err
		}
		switch size {
		case 1:
			b = append(b, byte(bits))
		case 2:
			b = binary.LittleEndian.AppendUint16(b, uint16(bits))
		case 4:
			b = binary.LittleEndian.AppendUint32(b, uint32(bits))
		default:
			b = binary.LittleEndian.AppendUint64(b, bits)
		}
	}
	return b, nil
}

// elementBits is a JSON value as an element of a type. Integers beyond a small type's range wrap, as in Triton.
func elementBits(v jsonValue, dtype pb.DataType) (uint64, error) {
	switch dtype {
	case pb.DataType_TYPE_BOOL:
		b, err := v.asBool()
		if b {
			return 1, err
		}
		return 0, err
	case pb.DataType_TYPE_FP32:
		f, err := v.asDouble()
		return uint64(math.Float32bits(float32(f))), err
	case pb.DataType_TYPE_FP64:
		f, err := v.asDouble()
		return math.Float64bits(f), err
	case pb.DataType_TYPE_UINT8, pb.DataType_TYPE_UINT16, pb.DataType_TYPE_UINT32, pb.DataType_TYPE_UINT64:
		return v.asUint()
	case pb.DataType_TYPE_INT8, pb.DataType_TYPE_INT16, pb.DataType_TYPE_INT32, pb.DataType_TYPE_INT64:
		n, err := v.asInt()
		return uint64(n), err
	default:
		return 0, fmt.Errorf("no JSON form of %s", triton.DatatypeName(dtype))
	}
}

// appendJSONData writes a tensor's elements as one flat array.
func appendJSONData(b []byte, t tensor) []byte {
	b = append(b, '[')
	if t.dtype == pb.DataType_TYPE_STRING {
		first := true
		eachString(t.data, func(e []byte) bool {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = appendString(b, string(e))
			return true
		})
		return append(b, ']')
	}
	size := int(triton.ElementSize(t.dtype))
	for i := 0; i+size <= len(t.data); i += size {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(b, t.dtype, t.data[i:i+size])
	}
	return append(b, ']')
}

func appendElement(b []byte, dtype pb.DataType, e []byte) []byte {
	le := binary.LittleEndian
	switch dtype {
	case pb.DataType_TYPE_BOOL:
		return strconv.AppendBool(b, e[0] != 0)
	case pb.DataType_TYPE_UINT8:
		return strconv.AppendUint(b, uint64(e[0]), 10)
	case pb.DataType_TYPE_UINT16:
		return strconv.AppendUint(b, uint64(le.Uint16(e)), 10)
	case pb.DataType_TYPE_UINT32:
		return strconv.AppendUint(b, uint64(le.Uint32(e)), 10)
	case pb.DataType_TYPE_UINT64:
		return strconv.AppendUint(b, le.Uint64(e), 10)
	case pb.DataType_TYPE_INT8:
		return strconv.AppendInt(b, int64(int8(e[0])), 10)
	case pb.DataType_TYPE_INT16:
		return strconv.AppendInt(b, int64(int16(le.Uint16(e))), 10)
	case pb.DataType_TYPE_INT32:
		return strconv.AppendInt(b, int64(int32(le.Uint32(e))), 10)
	case pb.DataType_TYPE_INT64:
		return strconv.AppendInt(b, int64(le.Uint64(e)), 10)
	case pb.DataType_TYPE_FP32:
		return appendDouble(b, float64(math.Float32frombits(le.Uint32(e))))
	default:
		return appendDouble(b, math.Float64frombits(le.Uint64(e)))
	}
}
