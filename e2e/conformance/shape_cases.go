// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// reshapeCases are a model that sees its input in another shape than its clients send.
func reshapeCases() []Case {
	four := func(dims ...int64) *pb.ModelInferRequest {
		return request("reshaped", input("INPUT0", "FP32", dims, make([]byte, 16*dims[0])))
	}
	wrong := func(name, got string, dims ...int64) Case {
		return Case{"infer/reshape: " + name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), four(dims...))
			e.refused(err, codes.InvalidArgument, noID+"unexpected shape for input 'INPUT0' for model 'reshaped'. Expected [-1,4], got "+got+". "+shapeHint)
		}}
	}
	return []Case{
		answered("reshape: the model sees three dimensions", four(1, 4), map[string]tensor{"OUTPUT0": {"INT32", shape(1, 1), i32(3)}}),
		answered("reshape: in every row", four(3, 4), map[string]tensor{"OUTPUT0": {"INT32", shape(3, 1), i32(3, 3, 3)}}),
		wrong("its own shape is not the clients'", "[1,2,2]", 1, 2, 2),
		wrong("too few", "[1,3]", 1, 3),
		{"infer/reshape: callers at once", func(e *Env) {
			e.eachItsOwn(16, func(i int) (*pb.ModelInferRequest, map[string]tensor) {
				rows := int64(i%2 + 1)
				return four(rows, 4), map[string]tensor{"OUTPUT0": {"INT32", shape(rows, 1), i32(3, 3)[:4*rows]}}
			})
		}},
		{"infer/reshape: over HTTP", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("reshaped"), `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`), 200, jsonType,
				`{"model_name":"reshaped","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1,1],"data":[3]}]}`)
		}},
		{"model/config and metadata with a reshape", func(e *Env) {
			r, err := e.Client.ModelMetadata(e.ctx(), "reshaped", "")
			require.NoError(e, err)
			require.Equal(e, shape(-1, 4), r.Inputs[0].Shape)
			require.Equal(e, shape(-1, 1), r.Outputs[0].Shape)
			var c struct{ Input, Output []json.RawMessage }
			require.NoError(e, json.Unmarshal([]byte(e.call("GET", "/v2/models/reshaped/config", "").body), &c))
			require.JSONEq(e, `{"name":"INPUT0","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],"reshape":{"shape":[2,2]},"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}`, string(c.Input[0]))
			require.JSONEq(e, `{"name":"OUTPUT0","data_type":"TYPE_INT32","dims":[1],"reshape":{"shape":[]},"label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}`, string(c.Output[0]))
		}},
		{"model/config of a ragged model", func(e *Env) {
			var c struct {
				BatchInput json.RawMessage `json:"batch_input"`
				Dynamic    json.RawMessage `json:"dynamic_batching"`
			}
			require.NoError(e, json.Unmarshal([]byte(e.call("GET", "/v2/models/ragged/config", "").body), &c))
			require.JSONEq(e, `[{"kind":"BATCH_ACCUMULATED_ELEMENT_COUNT","target_name":["INDEX"],"data_type":"TYPE_FP32","source_input":["INPUT0"]}]`, string(c.BatchInput))
			require.JSONEq(e, `{"preferred_batch_size":[8],"max_queue_delay_microseconds":0,"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}}`, string(c.Dynamic))
		}},
	}
}

// formingCases see by the statistics how batches come to be. The models take a while per execution, so that the rest queues meanwhile.
func formingCases() []Case {
	return []Case{
		{"batching/ragged inputs of different lengths run together", func(e *Env) {
			const callers = 24
			before := e.quiet("ragged")
			e.eachItsOwn(callers, func(i int) (*pb.ModelInferRequest, map[string]tensor) {
				values := make([]float32, i%4+1)
				for k := range values {
					values[k] = float32(10*i + k)
				}
				dims := shape(1, int64(len(values)))
				return request("ragged", input("INPUT0", "FP32", dims, fp32(values...))), map[string]tensor{"OUTPUT0": {"FP32", dims, fp32(values...)}}
			})
			after := e.settled(before, callers)
			require.Equal(e, before.InferenceCount+callers, after.InferenceCount)
			require.Less(e, after.ExecutionCount, before.ExecutionCount+callers, "lengths differ, and some ran together all the same")
		}},
	}
}
