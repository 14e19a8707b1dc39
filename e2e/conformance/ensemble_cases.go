// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// pipeline is a request of the ensemble that adds and subtracts twice: A is 0..15, B ones.
func pipeline(options ...option) *pb.ModelInferRequest {
	ones := i32(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	return request("pipeline", append([]option{input("A", "INT32", shape(1, 16), seq16(0)), input("B", "INT32", shape(1, 16), ones)}, options...)...)
}

// throughError is a request of the ensemble that passes its input to the error model.
func throughError(value float32, options ...option) *pb.ModelInferRequest {
	return request("pipeline_error", append([]option{input("IN", "FP32", shape(1, 1), fp32(value))}, options...)...)
}

// throughDecoupled is a request of the ensemble around the decoupled model.
func throughDecoupled(values ...int32) *pb.ModelInferRequest {
	n := int64(len(values))
	return request("pipeline_decoupled", input("VALUES", "INT32", shape(n), i32(values...)), input("DELAYS", "UINT32", shape(n), make([]byte, 4*n)), id("d"))
}

// ensembleCases infer with ensembles.
func ensembleCases() []Case {
	twos := i32(2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2)
	twiceA, twiceB := tensor{"INT32", shape(1, 16), doubled(0)}, tensor{"INT32", shape(1, 16), twos}
	refusal := func(name string, r *pb.ModelInferRequest, code codes.Code, message string) Case {
		return Case{"ensemble/" + name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), r)
			e.refused(err, code, message)
		}}
	}
	const start = `{"model_name":"pipeline","model_version":"1","parameters":{"sequence_id":0,"sequence_start":false,"sequence_end":false},"outputs":[{"name":"TWICE_B",`
	const ab = `{"name":"A","datatype":"INT32","shape":[1,16],"data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]},{"name":"B","datatype":"INT32","shape":[1,16],"data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`
	return []Case{
		{"ensemble/all outputs", func(e *Env) {
			resp := e.infer(pipeline(id("x")))
			require.Equal(e, []string{"pipeline", "1", "x"}, []string{resp.ModelName, resp.ModelVersion, resp.Id})
			e.wantOutputs(resp, map[string]tensor{"TWICE_A": twiceA, "TWICE_B": twiceB})
		}},
		{"ensemble/one output", func(e *Env) {
			e.wantOutputs(e.infer(pipeline(outputs("TWICE_B"))), map[string]tensor{"TWICE_B": twiceB})
		}},
		{"ensemble/several rows", func(e *Env) {
			r := request("pipeline", input("A", "INT32", shape(2, 16), append(seq16(0), seq16(5)...)), input("B", "INT32", shape(2, 16), append(seq16(1), seq16(2)...)))
			e.wantOutputs(e.infer(r), map[string]tensor{"TWICE_A": {"INT32", shape(2, 16), append(doubled(0), doubled(10)...)},
				"TWICE_B": {"INT32", shape(2, 16), append(doubled(2), doubled(4)...)}})
		}},
		{"ensemble/the sequence is a parameter of the answer", func(e *Env) {
			parameters := func(r *pb.ModelInferResponse) map[string]string {
				out := map[string]string{}
				for k, v := range r.Parameters {
					out[k] = v.String()
				}
				return out
			}
			require.Equal(e, map[string]string{"sequence_id": "int64_param:0", "sequence_start": "bool_param:false", "sequence_end": "bool_param:false"}, parameters(e.infer(pipeline())))
			require.Equal(e, map[string]string{"sequence_id": "int64_param:7", "sequence_start": "bool_param:true", "sequence_end": "bool_param:false"},
				parameters(e.infer(pipeline(parameter("sequence_id", 7), parameter("sequence_start", true)))))
			require.Equal(e, map[string]string{"sequence_id": `string_param:"ab"`, "sequence_start": "bool_param:false", "sequence_end": "bool_param:true"},
				parameters(e.infer(pipeline(parameter("sequence_id", "ab"), parameter("sequence_end", true)))))
		}},
		{"ensemble/classification", func(e *Env) {
			e.wantOutputs(e.infer(pipeline(classes("TWICE_A", 2))), map[string]tensor{"TWICE_A": {"BYTES", shape(1, 2), bytesElements("30:15", "28:14")}})
		}},
		{"ensemble/over HTTP", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("pipeline"), `{"inputs":[`+ab+`],"outputs":[{"name":"TWICE_B"}]}`), 200, jsonType,
				start+`"datatype":"INT32","shape":[1,16],"data":[2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2]}]}`)
			e.wantHTTP(e.call("POST", inferPath("pipeline"), `{"inputs":[`+ab+`],"outputs":[{"name":"TWICE_B","parameters":{"classification":1}}]}`), 200, jsonType,
				start+`"datatype":"BYTES","shape":[1,1],"data":["2:0"]}]}`)
		}},
		{"ensemble/generate", func(e *Env) {
			e.wantExactly(e.call("POST", generatePath("pipeline"), `{"A":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15],"B":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`), 200, jsonType,
				`{"TWICE_A":[0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30],"TWICE_B":[2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2],"model_name":"pipeline","model_version":"1","sequence_end":false,"sequence_id":0,"sequence_start":false}`)
		}},
		{"ensemble/metadata", func(e *Env) {
			e.wantHTTP(e.call("GET", "/v2/models/pipeline", ""), 200, jsonType, `{"name":"pipeline","versions":["1"],"platform":"ensemble",`+
				`"inputs":[{"name":"A","datatype":"INT32","shape":[-1,16]},{"name":"B","datatype":"INT32","shape":[-1,16]}],`+
				`"outputs":[{"name":"TWICE_A","datatype":"INT32","shape":[-1,16]},{"name":"TWICE_B","datatype":"INT32","shape":[-1,16]}]}`)
		}},
		{"ensemble/config", func(e *Env) {
			in := func(name string) string {
				return `{"name":"` + name + `","data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}`
			}
			out := func(name string) string {
				return `{"name":"` + name + `","data_type":"TYPE_INT32","dims":[16],"label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}`
			}
			e.wantHTTP(e.call("GET", "/v2/models/pipeline/config", ""), 200, jsonType, `{"name":"pipeline","platform":"ensemble","backend":"","runtime":"","version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,`+
				`"input":[`+in("A")+`,`+in("B")+`],"output":[`+out("TWICE_A")+`,`+out("TWICE_B")+`],"batch_input":[],"batch_output":[],`+
				`"ensemble_scheduling":{"step":[{"model_name":"add_sub","model_version":-1,"input_map":{"INPUT0":"A","INPUT1":"B"},"output_map":{"OUTPUT0":"sum","OUTPUT1":"difference"},"model_namespace":""},`+
				`{"model_name":"add_sub","model_version":-1,"input_map":{"INPUT0":"sum","INPUT1":"difference"},"output_map":{"OUTPUT0":"TWICE_A","OUTPUT1":"TWICE_B"},"model_namespace":""}]},`+
				`"instance_group":[],"default_model_filename":"","cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[],"model_transaction_policy":{"decoupled":false}}`)
		}},
		refusal("a tensor between steps is no output", pipeline(outputs("sum")), codes.InvalidArgument, "unexpected inference output 'sum' for model 'pipeline'"),
		refusal("an input too few", request("pipeline", input("A", "INT32", shape(1, 16), seq16(0))), codes.InvalidArgument,
			noID+"expected 2 inputs but got 1 inputs for model 'pipeline'. Got input(s) ['A'], but missing required input(s) ['B']. Please provide all required input(s)."),
		refusal("too many rows", request("pipeline_error", input("IN", "FP32", shape(9, 1), make([]byte, 36))), codes.InvalidArgument, noID+"inference request batch-size must be <= 8 for 'pipeline_error'"),
		refusal("wrong shape", request("pipeline_error", input("IN", "FP32", shape(1), fp32(1))), codes.InvalidArgument,
			noID+"unexpected shape for input 'IN' for model 'pipeline_error'. Expected [-1,-1], got [1]. "+shapeHint),
		refusal("a step's error", throughError(-1, id("7")), codes.Internal, "in ensemble 'pipeline_error', negative input"),
		refusal("decoupled", throughDecoupled(1), codes.Unimplemented, "ModelInfer RPC doesn't support models with decoupled transaction policy"),
		{"ensemble/without a step's error", func(e *Env) {
			e.wantOutputs(e.infer(throughError(1)), map[string]tensor{"OUT": {"FP32", shape(1, 1), fp32(1)}})
		}},
		{"ensemble/a step's error over HTTP", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("pipeline_error"), `{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1],"data":[-1]}]}`), 500, textPlain,
				errorJSON("in ensemble 'pipeline_error', negative input"))
		}},
		{"ensemble/decoupled over HTTP", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("pipeline_decoupled"), `{}`), 501, textPlain, errorJSON("HTTP end point doesn't support models with decoupled transaction policy"))
			event := func(value, index string) string {
				return `data: {"INDEX":` + index + `,"VALUE":` + value + `,"model_name":"pipeline_decoupled","model_version":"1","sequence_end":false,"sequence_id":0,"sequence_start":false}` + "\n\n"
			}
			e.wantExactly(e.call("POST", generatePath("pipeline_decoupled")+"_stream", `{"VALUES":[4,5],"DELAYS":[0,0]}`), 200, eventStream, event("4", "0")+event("5", "1"))
		}},
		{"ensemble/on a stream", func(e *Env) {
			messages := e.stream(pipeline(id("a"), outputs("TWICE_B")), throughError(-1, id("b")))
			require.Len(e, messages, 2)
			require.Equal(e, "a|pipeline|1|final|"+hex(twos), summary(messages[0]))
			require.Equal(e, "b|pipeline_error||final|error: in ensemble 'pipeline_error', negative input", summary(messages[1]))
		}},
		{"ensemble/decoupled on a stream", func(e *Env) {
			var values []string
			for _, m := range e.stream(throughDecoupled(4, 5)) {
				require.Empty(e, m.ErrorMessage)
				require.False(e, m.InferResponse.Parameters["triton_final_response"].GetBoolParam())
				for i, o := range m.InferResponse.Outputs {
					if o.Name == "VALUE" {
						values = append(values, hex(m.InferResponse.RawOutputContents[i]))
					}
				}
			}
			require.Equal(e, []string{"04000000", "05000000"}, values)
		}},
	}
}

// ensembleRepositoryCases load and unload ensembles and what they call. Each leaves everything loaded.
func ensembleRepositoryCases() []Case {
	state := func(e *Env, model string) string {
		index, err := e.Client.Index(e.ctx(), false)
		require.NoError(e, err)
		for _, m := range index {
			if m.Name == model {
				return m.State
			}
		}
		return "not listed"
	}
	becomes := func(e *Env, model, want string) {
		e.until(func() bool { return state(e, model) == want }, 20*time.Millisecond, "%s becomes %s", model, want)
	}
	// A real server may keep a model as UNLOADING for good, of which an execution has failed as a whole while other requests of it were there: as other
	// cases have them fail. The model can be loaded again all the same.
	unloaded := func(e *Env, model string) {
		patience := time.Now().Add(5 * time.Second)
		e.until(func() bool {
			now := state(e, model)
			return now == "UNAVAILABLE" || now == "UNLOADING" && time.Now().After(patience)
		}, 20*time.Millisecond, "%s is unloaded", model)
	}
	return []Case{
		{"ensemble/unload of a member takes it along, load brings it back", func(e *Env) {
			defer func() { require.NoError(e, e.Target.Load(e.ctx(), "error")) }() // wherever the case ends
			require.NoError(e, e.Target.Unload(e.ctx(), "error"))
			becomes(e, "pipeline_error", "UNAVAILABLE")
			unloaded(e, "error")
			_, err := e.Client.Stub.ModelInfer(e.ctx(), throughError(1))
			e.refused(err, codes.NotFound, "Request for unknown model: 'pipeline_error' has no available versions")
			require.Equal(e, "READY", state(e, "identity"))
			require.NoError(e, e.Target.Load(e.ctx(), "error"))
			require.Equal(e, "READY", state(e, "pipeline_error"), "it is back once load has returned")
			e.infer(throughError(1))
		}},
		{"ensemble/load loads what it calls", func(e *Env) {
			require.NoError(e, e.Target.Unload(e.ctx(), "pipeline_error"))
			becomes(e, "pipeline_error", "UNAVAILABLE")
			require.Equal(e, "READY", state(e, "error"), "unload leaves the members")
			require.NoError(e, e.Target.Unload(e.ctx(), "error"))
			unloaded(e, "error")
			require.NoError(e, e.Target.Load(e.ctx(), "pipeline_error"))
			require.Equal(e, "READY", state(e, "error"))
			e.infer(throughError(1))
			require.NoError(e, e.Target.Load(e.ctx(), "error"))
		}},
		{"ensemble/unload with dependents", func(e *Env) {
			unload := func() {
				_, err := e.Client.Stub.RepositoryModelUnload(e.ctx(), &pb.RepositoryModelUnloadRequest{ModelName: "pipeline_error",
					Parameters: map[string]*pb.ModelRepositoryParameter{"unload_dependents": {ParameterChoice: &pb.ModelRepositoryParameter_BoolParam{BoolParam: true}}}})
				require.NoError(e, err)
				becomes(e, "pipeline_error", "UNAVAILABLE")
			}
			require.NoError(e, e.Target.Unload(e.ctx(), "error"))
			unloaded(e, "error")
			require.NoError(e, e.Target.Load(e.ctx(), "error"))
			require.Equal(e, "READY", state(e, "pipeline_error"), "it is back once load has returned")
			unload()
			require.Equal(e, "READY", state(e, "error"), "it was loaded for its own sake")
			require.NoError(e, e.Target.Unload(e.ctx(), "error"))
			unloaded(e, "error")
			require.NoError(e, e.Target.Load(e.ctx(), "pipeline_error"))
			unload()
			unloaded(e, "error")
			// Whether the other member is unloaded too depends on what loaded it first, the ensemble or a request for the member.
			require.NoError(e, e.Target.Load(e.ctx(), "identity"))
			require.NoError(e, e.Target.Load(e.ctx(), "error"))
			require.NoError(e, e.Target.Load(e.ctx(), "pipeline_error"))
			e.infer(identity())
		}},
		{"ensemble/statistics", func(e *Env) {
			before, member := e.statistics("pipeline"), e.statistics("add_sub")
			e.infer(pipeline())
			after := e.settled(before, 1)
			require.Equal(e, before.InferenceCount+1, after.InferenceCount)
			require.Equal(e, before.ExecutionCount+1, after.ExecutionCount)
			require.Equal(e, batchCount(before, 1)+1, batchCount(after, 1))
			steps := e.settled(member, 2)
			require.Equal(e, member.InferenceCount+2, steps.InferenceCount, "two steps")
			require.Equal(e, member.InferenceStats.Success.Count+2, steps.InferenceStats.Success.Count)
			require.Equal(e, member.InferenceStats.ComputeInfer.Count+2, steps.InferenceStats.ComputeInfer.Count)
		}},
	}
}
