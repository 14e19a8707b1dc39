// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/conch-serving/conch/internal/triton"
)

// Field numbers of InferTensorContents.
const (
	contentsBool   = 1
	contentsInt    = 2
	contentsInt64  = 3
	contentsUint   = 4
	contentsUint64 = 5
	contentsFP32   = 6
	contentsFP64   = 7
	contentsBytes  = 8
)

// ErrContents means typed contents that do not suit the tensor's datatype.
var ErrContents = errors.New("typed contents do not match the datatype")

// contentsField is the list that carries a datatype, as Triton reads it. FP16
// and BF16 have none.
func contentsField(datatype string) (field protowire.Number, ok bool) {
	switch datatype {
	case "BOOL":
		return contentsBool, true
	case "INT8", "INT16", "INT32":
		return contentsInt, true
	case "INT64":
		return contentsInt64, true
	case "UINT8", "UINT16", "UINT32":
		return contentsUint, true
	case "UINT64":
		return contentsUint64, true
	case "FP32":
		return contentsFP32, true
	case "FP64":
		return contentsFP64, true
	case bytesDatatype:
		return contentsBytes, true
	}
	return 0, false
}

// Normalize turns typed contents into raw Data, little-endian, row-major.
// Values that do not fit INT8, INT16, UINT8 or UINT16 wrap silently, as in
// Triton. Contents stays; a tensor without typed contents is left alone.
func (t *Tensor) Normalize() error {
	if !t.typed() {
		return nil
	}
	field, ok := contentsField(t.Datatype)
	if !ok {
		return fmt.Errorf("%w: tensor %q of datatype %q can only be sent raw", ErrContents, t.Name, t.Datatype)
	}
	size := triton.SizeOf(t.Datatype)
	raw := make([]byte, 0, len(t.Contents))
	err := eachValue(t.Contents, func(num protowire.Number, bits uint64, b []byte) error {
		if num != field {
			return fmt.Errorf("%w: tensor %q of datatype %q has values in field %d", ErrContents, t.Name, t.Datatype, num)
		}
		switch size {
		case 0:
			raw = binary.LittleEndian.AppendUint32(raw, uint32(len(b)))
			raw = append(raw, b...)
		case 1:
			if num == contentsBool && bits != 0 {
				bits = 1
			}
			raw = append(raw, byte(bits))
		case 2:
			raw = binary.LittleEndian.AppendUint16(raw, uint16(bits))
		case 4:
			raw = binary.LittleEndian.AppendUint32(raw, uint32(bits))
		case 8:
			raw = binary.LittleEndian.AppendUint64(raw, bits)
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.Data.Free()
	t.Data = mem.BufferSlice{mem.SliceBuffer(raw)}
	return nil
}

// validContents checks what the protobuf runtime checks.
func validContents(b []byte) error {
	return eachValue(b, func(protowire.Number, uint64, []byte) error { return nil })
}

// eachValue calls f for every value of an encoded InferTensorContents: bits for
// numbers, raw for bytes. A known list with an unexpected wire type counts as an
// unknown field and is skipped, as everywhere in protobuf.
func eachValue(b []byte, f func(num protowire.Number, bits uint64, raw []byte) error) error {
	return eachField(b, "contents", func(num protowire.Number, kind protowire.Type, value []byte) error {
		packed := kind == protowire.BytesType
		if num == contentsBytes {
			if packed {
				return f(num, 0, value)
			}
			return nil
		}
		if num < contentsBool || num > contentsBytes {
			return nil
		}
		single := protowire.VarintType
		switch num {
		case contentsFP32:
			single = protowire.Fixed32Type
		case contentsFP64:
			single = protowire.Fixed64Type
		}
		if !packed && kind != single {
			return nil
		}
		for len(value) > 0 {
			var bits uint64
			var n int
			switch single {
			case protowire.Fixed32Type:
				var v uint32
				v, n = protowire.ConsumeFixed32(value)
				bits = uint64(v)
			case protowire.Fixed64Type:
				bits, n = protowire.ConsumeFixed64(value)
			default:
				bits, n = protowire.ConsumeVarint(value)
			}
			if n < 0 {
				return fmt.Errorf("%w: packed values in contents", ErrMalformed)
			}
			value = value[n:]
			if err := f(num, bits, nil); err != nil {
				return err
			}
		}
		return nil
	})
}
