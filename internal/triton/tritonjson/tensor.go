// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/conch-serving/conch/internal/triton"
)

// ErrShape is a "data" array with more or fewer elements than the tensor's shape has.
var ErrShape = errors.New("Shape does not match true shape of 'data' field") //nolint:staticcheck // Triton's text

// ReadTensor turns a "data" array, however it is nested, into the raw little-endian bytes of a tensor of count
// elements. BYTES elements get their four-byte lengths, and their number is not checked here, as in Triton. Integers
// that do not fit wrap silently, as in Triton. Memory grows with the text and never with count alone.
func ReadTensor(data Value, datatype string, count int64) ([]byte, error) {
	size := int64(triton.SizeOf(datatype))
	if size < 0 {
		return nil, fmt.Errorf("unknown datatype %q", datatype)
	}
	r := tensorReader{text: data.doc.text, left: count}
	if datatype == "BYTES" {
		r.left = math.MaxInt64
	} else {
		// Every element takes a digit and a comma at the least.
		r.out = make([]byte, 0, min(count, int64(len(data.Raw())/2+1))*size)
	}
	convert, ok := converters[datatype]
	if !ok {
		return nil, fmt.Errorf("datatype %s has no JSON form", datatype)
	}
	if err := r.array(data.pos, convert); err != nil {
		return nil, err
	}
	if datatype != "BYTES" && r.left != 0 {
		return nil, ErrShape
	}
	return r.out, nil
}

type tensorReader struct {
	text []byte
	out  []byte
	left int64
}

// array walks the arrays without recursion: the text is well-formed, so commas and brackets can be stepped over.
func (r *tensorReader) array(pos int, convert func(*tensorReader, Value) (int, error)) error {
	doc := &Doc{text: r.text}
	for depth := 0; ; {
		switch c := r.text[pos]; {
		case c == '[':
			depth++
			pos++
		case c == ']':
			depth--
			pos++
			if depth == 0 {
				return nil
			}
		case c == ',' || isSpace(c):
			pos++
		default:
			if r.left == 0 {
				return ErrShape
			}
			r.left--
			next, err := convert(r, Value{doc, pos})
			if err != nil {
				return err
			}
			pos = next
		}
	}
}

var converters = map[string]func(*tensorReader, Value) (int, error){
	"BOOL":   readBool,
	"UINT8":  readUint(func(b []byte, u uint64) []byte { return append(b, byte(u)) }),
	"UINT16": readUint(func(b []byte, u uint64) []byte { return binary.LittleEndian.AppendUint16(b, uint16(u)) }),
	"UINT32": readUint(func(b []byte, u uint64) []byte { return binary.LittleEndian.AppendUint32(b, uint32(u)) }),
	"UINT64": readUint(binary.LittleEndian.AppendUint64),
	"INT8":   readInt(func(b []byte, i int64) []byte { return append(b, byte(i)) }),
	"INT16":  readInt(func(b []byte, i int64) []byte { return binary.LittleEndian.AppendUint16(b, uint16(i)) }),
	"INT32":  readInt(func(b []byte, i int64) []byte { return binary.LittleEndian.AppendUint32(b, uint32(i)) }),
	"INT64":  readInt(func(b []byte, i int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(i)) }),
	"FP32": readDouble(func(b []byte, f float64) []byte {
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(f)))
	}),
	"FP64":  readDouble(func(b []byte, f float64) []byte { return binary.LittleEndian.AppendUint64(b, math.Float64bits(f)) }),
	"BYTES": readBytes,
}

// readNumber reads numbers by one of number's conversions; the error is of a value that is no number.
func readNumber[N any](convert func(number) (N, error), other string, put func([]byte, N) []byte) func(*tensorReader, Value) (int, error) {
	return func(r *tensorReader, v Value) (int, error) {
		n, ok := v.number()
		if !ok {
			return 0, &TypeError{other}
		}
		x, err := convert(n)
		if err != nil {
			return 0, err
		}
		r.out = put(r.out, x)
		return v.pos + len(n), nil
	}
}

func readUint(put func([]byte, uint64) []byte) func(*tensorReader, Value) (int, error) {
	return readNumber(number.uint64, notUnsigned, put)
}

func readInt(put func([]byte, int64) []byte) func(*tensorReader, Value) (int, error) {
	return readNumber(number.int64, notSigned, put)
}

func readDouble(put func([]byte, float64) []byte) func(*tensorReader, Value) (int, error) {
	return readNumber(func(n number) (float64, error) { return n.float64(), nil }, notDouble, put)
}

func readBool(r *tensorReader, v Value) (int, error) {
	b, err := v.AsBool()
	if err != nil {
		return 0, err
	}
	if b {
		r.out = append(r.out, 1)
	} else {
		r.out = append(r.out, 0)
	}
	return v.end(), nil
}

func readBytes(r *tensorReader, v Value) (int, error) {
	if v.Kind() != String {
		return 0, &TypeError{notString}
	}
	end := v.end()
	at := len(r.out)
	r.out = append(r.out, 0, 0, 0, 0)
	r.out = appendUnescaped(r.out, r.text[v.pos+1:end-1])
	binary.LittleEndian.PutUint32(r.out[at:], uint32(len(r.out)-at-4))
	return end, nil
}

// AppendTensor writes a tensor's raw bytes as the elements of a JSON array, flat as Triton writes it, without the
// brackets. It returns ErrTensorSize if the bytes are not count elements.
func AppendTensor(dst []byte, datatype string, raw []byte, count int64) ([]byte, error) {
	size := int64(triton.SizeOf(datatype))
	if size < 0 {
		return dst, fmt.Errorf("unknown datatype %q", datatype)
	}
	if datatype == "BYTES" {
		return appendBytes(dst, raw, count)
	}
	if have := int64(len(raw)); have%size != 0 || have/size != count { // count*size may overflow
		return dst, ErrTensorSize
	}
	dst = slices.Grow(dst, int(count)*textSize(size, datatype))
	le := binary.LittleEndian
	for i := range int(count) {
		if i > 0 {
			dst = append(dst, ',')
		}
		e := raw[i*int(size):]
		switch datatype {
		case "BOOL":
			dst = strconv.AppendBool(dst, e[0] != 0)
		case "UINT8":
			dst = strconv.AppendUint(dst, uint64(e[0]), 10)
		case "UINT16":
			dst = strconv.AppendUint(dst, uint64(le.Uint16(e)), 10)
		case "UINT32":
			dst = strconv.AppendUint(dst, uint64(le.Uint32(e)), 10)
		case "UINT64":
			dst = strconv.AppendUint(dst, le.Uint64(e), 10)
		case "INT8":
			dst = strconv.AppendInt(dst, int64(int8(e[0])), 10)
		case "INT16":
			dst = strconv.AppendInt(dst, int64(int16(le.Uint16(e))), 10)
		case "INT32":
			dst = strconv.AppendInt(dst, int64(int32(le.Uint32(e))), 10)
		case "INT64":
			dst = strconv.AppendInt(dst, int64(le.Uint64(e)), 10)
		case "FP32":
			dst = AppendDouble(dst, float64(math.Float32frombits(le.Uint32(e))))
		case "FP64":
			dst = AppendDouble(dst, math.Float64frombits(le.Uint64(e)))
		default:
			return dst, fmt.Errorf("datatype %s has no JSON form", datatype)
		}
	}
	return dst, nil
}

// textSize is about how long an element is as text, with its comma.
func textSize(size int64, datatype string) int {
	if datatype == "FP32" || datatype == "FP64" {
		return 20
	}
	return int(size)*2 + 3
}

// ErrTensorSize is a tensor whose bytes do not fit its shape.
var ErrTensorSize = errors.New("the tensor's bytes do not fit its shape")

func appendBytes(dst, raw []byte, count int64) ([]byte, error) {
	for i := range count {
		if len(raw) < 4 {
			return dst, ErrTensorSize
		}
		n := int64(binary.LittleEndian.Uint32(raw))
		raw = raw[4:]
		if int64(len(raw)) < n {
			return dst, ErrTensorSize
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, raw[:n])
		raw = raw[n:]
	}
	return dst, nil
}
