// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Message is a message of Triton's gRPC protocol as the HTTP endpoint writes it: every field under its proto name in
// printOrder, defaults written out, 64-bit integers as numbers. Of messages that are absent only statistics are written.
func Message(m proto.Message) []byte { return appendMessage(nil, m.ProtoReflect()) }

// RepositoryIndex is the answer of POST /v2/repository/index: the bare list, without what is empty.
func RepositoryIndex(m *tritonpb.RepositoryIndexResponse) []byte {
	f := m.ProtoReflect().Descriptor().Fields().ByName("models")
	return appendField(nil, f, m.ProtoReflect().Get(f))
}

// Error is the body of every error: {"error":"..."}.
func Error(message string) []byte {
	return append(AppendString([]byte(`{"error":`), message), '}')
}

// printOrder is where the order in which the server prints a message's fields is not the order of their numbers.
var printOrder = map[protoreflect.FullName][]protoreflect.Name{
	"inference.ModelConfig": {"name", "platform", "backend", "runtime", "version_policy", "max_batch_size", "input", "output",
		"batch_input", "batch_output", "optimization", "dynamic_batching", "sequence_batching", "ensemble_scheduling",
		"instance_group", "default_model_filename", "cc_model_filenames", "metric_tags", "parameters", "model_warmup",
		"model_operations", "model_transaction_policy", "model_repository_agents", "response_cache", "model_metrics"},
	"inference.ModelInstanceGroup": {"name", "kind", "count", "rate_limiter", "gpus", "secondary_devices", "profile",
		"passive", "host_policy"},
	"inference.ModelSequenceBatching.Control": {"kind", "int32_false_true", "fp32_false_true", "bool_false_true", "data_type"},
	"inference.ModelStatistics": {"name", "version", "last_inference", "inference_count", "execution_count", "inference_stats",
		"response_stats", "batch_stats", "memory_usage"},
	"inference.ModelSequenceBatching": {"direct", "oldest", "max_sequence_idle_microseconds", "control_input", "state"},
}

// fieldsOf are a message's fields in the order in which they are printed; what the order does not name comes last.
func fieldsOf(d protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	order := printOrder[d.FullName()]
	fields := make([]protoreflect.FieldDescriptor, 0, d.Fields().Len())
	for _, name := range order {
		if f := d.Fields().ByName(name); f != nil {
			fields = append(fields, f)
		}
	}
	for i := range d.Fields().Len() {
		if f := d.Fields().Get(i); !slices.Contains(order, f.Name()) {
			fields = append(fields, f)
		}
	}
	return fields
}

// left reports whether a field is left out. A server of version 2.51 does not have max_inflight_requests: one whose value
// is the default may be such a server.
func left(m protoreflect.Message, f protoreflect.FieldDescriptor) bool {
	switch {
	case m.Has(f):
		return false
	case f.Parent().FullName() == "inference.RepositoryIndexResponse.ModelIndex", f.FullName() == "inference.ModelEnsembling.max_inflight_requests":
		return true
	case f.Message() == nil:
		return f.HasPresence()
	}
	name := f.Message().FullName()
	return f.HasPresence() && name != "inference.StatisticDuration" && name != "inference.InferStatistics"
}

func appendMessage(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	n := 0
	for _, f := range fieldsOf(m.Descriptor()) {
		if left(m, f) {
			continue
		}
		b = appendField(appendName(appendComma(b, n), string(f.Name())), f, m.Get(f))
		n++
	}
	return append(b, '}')
}

func appendField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch {
	case f.IsMap():
		byKey := make(map[string]protoreflect.Value)
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			byKey[k.String()] = v
			return true
		})
		b = append(b, '{')
		for i, k := range slices.Sorted(maps.Keys(byKey)) {
			b = appendScalar(appendName(appendComma(b, i), k), f.MapValue(), byKey[k])
		}
		return append(b, '}')
	case f.IsList():
		b = append(b, '[')
		for i := range v.List().Len() {
			b = appendScalar(appendComma(b, i), f, v.List().Get(i))
		}
		return append(b, ']')
	default:
		return appendScalar(b, f, v)
	}
}

func appendScalar(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(b, v.Message())
	case protoreflect.EnumKind:
		if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
			return AppendString(b, string(e.Name()))
		}
		return strconv.AppendInt(b, int64(v.Enum()), 10)
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	case protoreflect.StringKind:
		return AppendString(b, v.String())
	case protoreflect.BytesKind:
		return AppendString(b, v.Bytes())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return strconv.AppendFloat(b, v.Float(), 'g', -1, 64)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return strconv.AppendUint(b, v.Uint(), 10)
	default:
		return strconv.AppendInt(b, v.Int(), 10)
	}
}
