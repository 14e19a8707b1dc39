// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"slices"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ServerMetadata is the answer of GET /v2.
func ServerMetadata(m *tritonpb.ServerMetadataResponse) []byte {
	b := AppendString([]byte(`{"name":`), m.GetName())
	b = AppendString(append(b, `,"version":`...), m.GetVersion())
	b = appendStrings(append(b, `,"extensions":`...), m.GetExtensions())
	return append(b, '}')
}

// ModelMetadata is the answer of GET /v2/models/M.
func ModelMetadata(m *tritonpb.ModelMetadataResponse) []byte {
	b := AppendString([]byte(`{"name":`), m.GetName())
	b = appendStrings(append(b, `,"versions":`...), m.GetVersions())
	b = AppendString(append(b, `,"platform":`...), m.GetPlatform())
	b = appendTensorMetadata(append(b, `,"inputs":`...), m.GetInputs())
	b = appendTensorMetadata(append(b, `,"outputs":`...), m.GetOutputs())
	return append(b, '}')
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		b = AppendString(appendComma(b, i), s)
	}
	return append(b, ']')
}

func appendTensorMetadata(b []byte, list []*tritonpb.ModelMetadataResponse_TensorMetadata) []byte {
	b = append(b, '[')
	for i, t := range list {
		b = AppendString(append(appendComma(b, i), `{"name":`...), t.GetName())
		b = AppendString(append(b, `,"datatype":`...), t.GetDatatype())
		b = AppendShape(append(b, `,"shape":`...), t.GetShape())
		b = append(b, '}')
	}
	return append(b, ']')
}

// RepositoryIndex is the answer of POST /v2/repository/index; what is empty is left out.
func RepositoryIndex(m *tritonpb.RepositoryIndexResponse) []byte {
	b := []byte{'['}
	for i, model := range m.GetModels() {
		b = AppendString(append(appendComma(b, i), `{"name":`...), model.GetName())
		for _, member := range []struct{ name, value string }{
			{`,"version":`, model.GetVersion()}, {`,"state":`, model.GetState()}, {`,"reason":`, model.GetReason()}} {
			if member.value != "" {
				b = AppendString(append(b, member.name...), member.value)
			}
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// ModelStatistics is the answer of GET .../stats.
func ModelStatistics(m *tritonpb.ModelStatisticsResponse) []byte {
	b := []byte(`{"model_stats":[`)
	for i, s := range m.GetModelStats() {
		b = AppendString(append(appendComma(b, i), `{"name":`...), s.GetName())
		b = AppendString(append(b, `,"version":`...), s.GetVersion())
		b = appendUint(append(b, `,"last_inference":`...), s.GetLastInference())
		b = appendUint(append(b, `,"inference_count":`...), s.GetInferenceCount())
		b = appendUint(append(b, `,"execution_count":`...), s.GetExecutionCount())
		t := s.GetInferenceStats()
		b = append(b, `,"inference_stats":{`...)
		b = appendDurations(b, durations{
			{"success", t.GetSuccess()}, {"fail", t.GetFail()}, {"queue", t.GetQueue()},
			{"compute_input", t.GetComputeInput()}, {"compute_infer", t.GetComputeInfer()},
			{"compute_output", t.GetComputeOutput()}, {"cache_hit", t.GetCacheHit()}, {"cache_miss", t.GetCacheMiss()}})
		b = appendResponses(append(b, `},"response_stats":`...), s.GetResponseStats())
		b = append(b, `,"batch_stats":[`...)
		for j, batch := range s.GetBatchStats() {
			b = appendUint(append(appendComma(b, j), `{"batch_size":`...), batch.GetBatchSize())
			b = appendDurations(append(b, ','), durations{
				{"compute_input", batch.GetComputeInput()}, {"compute_infer", batch.GetComputeInfer()},
				{"compute_output", batch.GetComputeOutput()}})
			b = append(b, '}')
		}
		b = append(b, `],"memory_usage":[`...)
		for j, u := range s.GetMemoryUsage() {
			b = AppendString(append(appendComma(b, j), `{"type":`...), u.GetType())
			b = appendInt(append(b, `,"id":`...), u.GetId())
			b = appendUint(append(b, `,"byte_size":`...), u.GetByteSize())
			b = append(b, '}')
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}"...)
}

type durations []struct {
	name string
	d    *tritonpb.StatisticDuration
}

func appendDurations(b []byte, list durations) []byte {
	for i, e := range list {
		b = append(appendName(appendComma(b, i), e.name), `{"count":`...)
		b = appendUint(b, e.d.GetCount())
		b = appendUint(append(b, `,"ns":`...), e.d.GetNs())
		b = append(b, '}')
	}
	return b
}

func appendResponses(b []byte, responses map[string]*tritonpb.InferResponseStatistics) []byte {
	b = append(b, '{')
	for i, key := range sortedKeys(responses) {
		r := responses[key]
		b = append(appendName(appendComma(b, i), key), '{')
		b = appendDurations(b, durations{
			{"compute_infer", r.GetComputeInfer()}, {"compute_output", r.GetComputeOutput()}, {"success", r.GetSuccess()},
			{"fail", r.GetFail()}, {"empty_response", r.GetEmptyResponse()}, {"cancel", r.GetCancel()}})
		b = append(b, '}')
	}
	return append(b, '}')
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// ModelConfig is the answer of GET /v2/models/M/config: every field under its proto name in the order of the
// definition, defaults written out, absent messages left out, and 64-bit integers as numbers.
func ModelConfig(c *tritonpb.ModelConfig) []byte {
	return appendMessage(nil, c.ProtoReflect())
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
	"inference.ModelSequenceBatching":         {"direct", "oldest", "max_sequence_idle_microseconds", "control_input", "state"},
}

// newer is a field that servers of version 2.51 do not have. A server whose field has the default may be one of them.
const newer = "inference.ModelEnsembling.max_inflight_requests"

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

func appendMessage(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	n := 0
	for _, f := range fieldsOf(m.Descriptor()) {
		if (f.HasPresence() || f.FullName() == newer) && !m.Has(f) {
			continue
		}
		b = appendName(appendComma(b, n), string(f.Name()))
		b = appendField(b, f, m.Get(f))
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
		for i, k := range sortedKeys(byKey) {
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
		return appendInt(b, int64(v.Enum()))
	case protoreflect.BoolKind:
		return appendBool(b, v.Bool())
	case protoreflect.StringKind:
		return AppendString(b, v.String())
	case protoreflect.BytesKind:
		return AppendString(b, v.Bytes())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return strconv.AppendFloat(b, v.Float(), 'g', -1, 64)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return appendUint(b, v.Uint())
	default:
		return appendInt(b, v.Int())
	}
}
