// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Names of parameters that mean something to Triton.
const (
	ParameterSequenceID         = "sequence_id"
	ParameterSequenceStart      = "sequence_start"
	ParameterSequenceEnd        = "sequence_end"
	ParameterPriority           = "priority"
	ParameterTimeout            = "timeout"
	ParameterClassification     = "classification"
	ParameterSharedMemoryRegion = "shared_memory_region"
	ParameterSharedMemoryOffset = "shared_memory_offset"
	ParameterSharedMemorySize   = "shared_memory_byte_size"
	ParameterBinaryData         = "binary_data"
	ParameterBinaryDataSize     = "binary_data_size"
	ParameterEmptyFinalResponse = "triton_enable_empty_final_response"
	ParameterFinalResponse      = "triton_final_response"
)

// Parameter is one entry of a request's, tensor's or response's parameters.
type Parameter struct {
	Name string
	// Value is the encoded InferParameter; empty when no choice was set.
	Value []byte
}

// Field numbers of InferParameter's choices.
const (
	choiceBool   = 1
	choiceInt64  = 2
	choiceString = 3
	choiceDouble = 4
	choiceUint64 = 5
)

// BoolParameter makes a parameter of kind bool_param.
func BoolParameter(name string, v bool) Parameter {
	b := protowire.AppendTag(nil, choiceBool, protowire.VarintType)
	return Parameter{name, protowire.AppendVarint(b, protowire.EncodeBool(v))}
}

// Int64Parameter makes a parameter of kind int64_param.
func Int64Parameter(name string, v int64) Parameter {
	b := protowire.AppendTag(nil, choiceInt64, protowire.VarintType)
	return Parameter{name, protowire.AppendVarint(b, uint64(v))}
}

// Uint64Parameter makes a parameter of kind uint64_param.
func Uint64Parameter(name string, v uint64) Parameter {
	b := protowire.AppendTag(nil, choiceUint64, protowire.VarintType)
	return Parameter{name, protowire.AppendVarint(b, v)}
}

// StringParameter makes a parameter of kind string_param.
func StringParameter(name, v string) Parameter {
	b := protowire.AppendTag(nil, choiceString, protowire.BytesType)
	return Parameter{name, protowire.AppendString(b, v)}
}

// DoubleParameter makes a parameter of kind double_param.
func DoubleParameter(name string, v float64) Parameter {
	b := protowire.AppendTag(nil, choiceDouble, protowire.Fixed64Type)
	return Parameter{name, protowire.AppendFixed64(b, math.Float64bits(v))}
}

// FindParameter returns the parameter of that name.
func FindParameter(list []Parameter, name string) (Parameter, bool) {
	for _, p := range list {
		if p.Name == name {
			return p, true
		}
	}
	return Parameter{}, false
}

// Bool returns the value of a bool_param; ok is false for any other kind.
func (p Parameter) Bool() (v, ok bool) {
	num, raw, ok := p.last()
	return raw.varint != 0, ok && num == choiceBool
}

// Int64 returns the value of an int64_param; ok is false for any other kind.
func (p Parameter) Int64() (v int64, ok bool) {
	num, raw, ok := p.last()
	return int64(raw.varint), ok && num == choiceInt64
}

// Uint64 returns the value of a uint64_param; ok is false for any other kind.
func (p Parameter) Uint64() (v uint64, ok bool) {
	num, raw, ok := p.last()
	return raw.varint, ok && num == choiceUint64
}

// Text returns the value of a string_param; ok is false for any other kind.
func (p Parameter) Text() (v string, ok bool) {
	num, raw, ok := p.last()
	if !ok || num != choiceString {
		return "", false
	}
	return string(raw.bytes), true
}

// Double returns the value of a double_param; ok is false for any other kind.
func (p Parameter) Double() (v float64, ok bool) {
	num, raw, ok := p.last()
	return math.Float64frombits(raw.varint), ok && num == choiceDouble
}

// reserved is the beginning of the parameter names that Triton keeps for itself.
const reserved = "triton_"

// valid reports whether Triton accepts the parameter of a request that belongs to
// no sequence.
func (p Parameter) valid() bool {
	kind, v, ok := p.last()
	switch {
	case p.Name == ParameterTimeout:
		return ok && kind == choiceInt64
	case p.Name == ParameterPriority:
		return ok && (kind == choiceUint64 || kind == choiceInt64 && int64(v.varint) >= 0)
	case p.Name == ParameterEmptyFinalResponse:
		return ok && kind == choiceBool
	case strings.HasPrefix(p.Name, reserved):
		return false
	}
	return ok && kind != choiceUint64
}

type choice struct {
	varint uint64 // fixed64 too
	bytes  []byte
}

// last returns the choice that counts: of a oneof, the last one on the wire.
func (p Parameter) last() (num protowire.Number, c choice, ok bool) {
	for b := p.Value; len(b) > 0; {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, choice{}, false
		}
		b = b[n:]
		var v choice
		known := true
		switch {
		case kind == protowire.VarintType && (field == choiceBool || field == choiceInt64 || field == choiceUint64):
			v.varint, n = protowire.ConsumeVarint(b)
		case kind == protowire.BytesType && field == choiceString:
			v.bytes, n = protowire.ConsumeBytes(b)
		case kind == protowire.Fixed64Type && field == choiceDouble:
			v.varint, n = protowire.ConsumeFixed64(b)
		default:
			known = false
			n = protowire.ConsumeFieldValue(field, kind, b)
		}
		if n < 0 {
			return 0, choice{}, false
		}
		b = b[n:]
		if known {
			num, c, ok = field, v, true
		}
	}
	return num, c, ok
}
