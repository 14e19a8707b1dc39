// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/conch-serving/conch/internal/onnx"
)

// generate makes rows for a member: floats between -1 and 1, integers below what they look up or of 0 and 1.
func (v *verifying) generate(m ManifestMember, rows int) []onnx.Array {
	var out []onnx.Array
	for _, in := range m.Inputs {
		x := onnx.Array{Name: in.Name, Type: in.Type, Dims: []int64{int64(rows)}}
		elements := rows
		for _, d := range in.Dims {
			if d < 0 {
				d = v.o.Open
			}
			x.Dims = append(x.Dims, d)
			elements *= int(d)
		}
		for range elements {
			x.Data = v.element(x.Data, in)
		}
		out = append(out, x)
	}
	return out
}

func (v *verifying) element(b []byte, in IO) []byte {
	f := v.random.Float64()*2 - 1
	below := int64(2)
	if in.Below > 0 {
		below = in.Below
	}
	n := uint64(v.random.Int64N(below)) //nolint:gosec // not negative
	switch in.Type {
	case onnx.Float:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(f)))
	case onnx.Double:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	case onnx.Float16:
		// Sign and a fraction with the exponent of 0.5: a number between .5 and 1, or its negative.
		return binary.LittleEndian.AppendUint16(b, uint16(v.random.Uint32())&0x83ff|0x3800) //nolint:gosec // its low bits
	case onnx.BFloat16:
		return binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(f))>>16)) //nolint:gosec // the upper half
	}
	var le [8]byte
	binary.LittleEndian.PutUint64(le[:], n)
	return append(b, le[:in.Type.Size(1)]...)
}

// poison is other rows of the same sizes: NaN where they are floats, which nothing that reads them can hide.
func (v *verifying) poison(inputs []onnx.Array) []onnx.Array {
	var out []onnx.Array
	for _, x := range inputs {
		y := x
		y.Data = nil
		for range len(x.Data) / int(max(x.Type.Size(1), 1)) {
			switch x.Type {
			case onnx.Float:
				y.Data = binary.LittleEndian.AppendUint32(y.Data, math.Float32bits(float32(math.NaN())))
			case onnx.Double:
				y.Data = binary.LittleEndian.AppendUint64(y.Data, math.Float64bits(math.NaN()))
			case onnx.Float16:
				y.Data = binary.LittleEndian.AppendUint16(y.Data, 0x7e00)
			case onnx.BFloat16:
				y.Data = binary.LittleEndian.AppendUint16(y.Data, 0x7fc0)
			default:
				y.Data = v.element(y.Data, v.declared(x.Name))
			}
		}
		out = append(out, y)
	}
	return out
}

// declared is the input of that name, of whichever member: those of a backbone are the same.
func (v *verifying) declared(name string) IO {
	for _, m := range v.m.Members {
		for _, in := range m.Inputs {
			if in.Name == name {
				return in
			}
		}
	}
	return IO{}
}

// numbers are the elements as they compare: floats as they are, integers as numbers.
func numbers(x onnx.Array) ([]float64, error) {
	width := int(x.Type.Size(1))
	if width == 0 || len(x.Data)%width != 0 {
		return nil, fmt.Errorf("elements of type %s cannot be compared", x.Type)
	}
	out := make([]float64, 0, len(x.Data)/width)
	for at := 0; at < len(x.Data); at += width {
		b := x.Data[at : at+width]
		switch x.Type {
		case onnx.Float:
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		case onnx.Double:
			out = append(out, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		case onnx.Float16:
			out = append(out, half(binary.LittleEndian.Uint16(b)))
		case onnx.BFloat16:
			out = append(out, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b))<<16)))
		case onnx.Int64, onnx.Int32, onnx.Int16, onnx.Int8, onnx.Uint64, onnx.Uint32, onnx.Uint16, onnx.Uint8, onnx.Bool:
			var le [8]byte
			copy(le[:], b)
			n := binary.LittleEndian.Uint64(le[:])
			shift := 64 - 8*width
			out = append(out, float64(int64(n<<shift)>>shift)) //nolint:gosec // sign extension
		default:
			return nil, fmt.Errorf("elements of type %s cannot be compared", x.Type)
		}
	}
	return out, nil
}

// half is a 16-bit float as a number.
func half(b uint16) float64 {
	sign, exponent, fraction := 1.0, int(b>>10)&31, float64(b&0x3ff)
	if b>>15 == 1 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * fraction * 0x1p-24
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1+fraction/1024, exponent-15)
}

func find(list []onnx.Array, name string) onnx.Array {
	for _, x := range list {
		if x.Name == name {
			return x
		}
	}
	return onnx.Array{Name: name}
}

// joinRows puts the rows of b behind those of a.
func joinRows(a, b onnx.Array) (onnx.Array, error) {
	if len(a.Dims) == 0 || len(a.Dims) != len(b.Dims) {
		return onnx.Array{}, fmt.Errorf("input %q: %v and %v do not fit", a.Name, a.Dims, b.Dims)
	}
	out := onnx.Array{Name: a.Name, Type: a.Type, Dims: append([]int64{a.Dims[0] + b.Dims[0]}, a.Dims[1:]...)}
	out.Data = append(append(out.Data, a.Data...), b.Data...)
	return out, nil
}

// takeRows is n rows of x from at on.
func takeRows(x onnx.Array, at, n int64) (onnx.Array, error) {
	if len(x.Dims) == 0 || at+n > x.Dims[0] || int64(len(x.Data))%x.Dims[0] != 0 {
		return onnx.Array{}, fmt.Errorf("value %q: rows %d to %d of %v", x.Name, at, at+n, x.Dims)
	}
	row := int64(len(x.Data)) / x.Dims[0]
	return onnx.Array{Name: x.Name, Type: x.Type, Dims: append([]int64{n}, x.Dims[1:]...), Data: x.Data[at*row : (at+n)*row]}, nil
}
