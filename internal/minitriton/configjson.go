// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// sinceThen is the field that the protocol has gained since the version that minitriton answers as.
const sinceThen = "inference.ModelEnsembling.max_inflight_requests"

// appendProtoJSON writes a message as Triton's HTTP front does: fields in the order of the .proto by their own names, every scalar,
// list and map even when empty, messages only when set, and 64-bit integers as numbers (protojson writes strings).
func appendProtoJSON(b []byte, m protoreflect.Message) []byte {
	fields := m.Descriptor().Fields()
	b = append(b, '{')
	first := true
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) || f.FullName() == sinceThen {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendString(b, string(f.Name())), ':')
		v := m.Get(f)
		switch {
		case f.IsMap():
			b = appendProtoMap(b, f, v.Map())
		case f.IsList():
			b = append(b, '[')
			for k := range v.List().Len() {
				if k > 0 {
					b = append(b, ',')
				}
				b = appendProtoValue(b, f, v.List().Get(k))
			}
			b = append(b, ']')
		default:
			b = appendProtoValue(b, f, v)
		}
	}
	return append(b, '}')
}

func appendProtoMap(b []byte, f protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	b = append(b, '{')
	first := true
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendString(b, k.String()), ':')
		b = appendProtoValue(b, f.MapValue(), v)
		return true
	})
	return append(b, '}')
}

func appendProtoValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.StringKind:
		return appendString(b, v.String())
	case protoreflect.BytesKind:
		return appendString(b, string(v.Bytes()))
	case protoreflect.EnumKind:
		if ev := f.Enum().Values().ByNumber(v.Enum()); ev != nil {
			return appendString(b, string(ev.Name()))
		}
		return strconv.AppendInt(b, int64(v.Enum()), 10)
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return appendDouble(b, v.Float())
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendProtoJSON(b, v.Message())
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(b, v.Uint(), 10)
	default:
		return strconv.AppendInt(b, v.Int(), 10)
	}
}
