// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// tensor is an expected output.
type tensor struct {
	datatype string
	shape    []int64
	data     []byte
}

// wantOutputs compares an answer's outputs by name: Triton does not promise their order.
func (e *Env) wantOutputs(r *pb.ModelInferResponse, want map[string]tensor) {
	e.Helper()
	require.Len(e, r.RawOutputContents, len(r.Outputs))
	got := map[string]tensor{}
	for i, o := range r.Outputs {
		got[o.Name] = tensor{o.Datatype, o.Shape, append([]byte{}, r.RawOutputContents[i]...)}
	}
	require.Len(e, r.Outputs, len(got), "an output twice")
	require.Equal(e, want, got)
}

// answered is a case of a request that is answered.
func answered(name string, r *pb.ModelInferRequest, want map[string]tensor) Case {
	return Case{"infer/" + name, func(e *Env) {
		resp := e.infer(r)
		require.Equal(e, r.ModelName, resp.ModelName)
		require.Equal(e, "1", resp.ModelVersion)
		require.Equal(e, r.Id, resp.Id)
		e.wantOutputs(resp, want)
	}}
}

// inferCases are requests that are answered.
func inferCases() []Case {
	echo := map[string]tensor{"OUTPUT0": {"FP32", shape(1, 2), fp32(1, 2.5)}}
	sum, difference := tensor{"INT32", shape(1, 16), seq16(1)}, tensor{"INT32", shape(1, 16), seq16(-1)}
	cases := []Case{
		answered("one row", identity(), echo),
		answered("by version", identity(version("1")), echo),
		answered("version with leading zero", identity(version("01")), echo),
		answered("id comes back", identity(id("a \"quoted\" id")), echo),
		answered("many rows", request("identity", input("INPUT0", "FP32", shape(8, 1), fp32(1, 2, 3, 4, 5, 6, 7, 8))),
			map[string]tensor{"OUTPUT0": {"FP32", shape(8, 1), fp32(1, 2, 3, 4, 5, 6, 7, 8)}}),
		answered("variable dimension of zero", request("identity", input("INPUT0", "FP32", shape(1, 0), nil)),
			map[string]tensor{"OUTPUT0": {"FP32", shape(1, 0), []byte{}}}),
		answered("raw contents without an input", identity(raw(fp32(7))), echo),
		answered("two inputs and outputs", addSub(), map[string]tensor{"OUTPUT0": sum, "OUTPUT1": difference}),
		answered("inputs in another order", request("add_sub", input("INPUT1", "INT32", shape(1, 16), seq16(0)), input("INPUT0", "INT32", shape(1, 16), seq16(1))),
			map[string]tensor{"OUTPUT0": {"INT32", shape(1, 16), doubled(1)}, "OUTPUT1": {"INT32", shape(1, 16), i32(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)}}),
		answered("one requested output", addSub(outputs("OUTPUT1")), map[string]tensor{"OUTPUT1": difference}),
		answered("requested outputs in another order", addSub(outputs("OUTPUT1", "OUTPUT0")), map[string]tensor{"OUTPUT0": sum, "OUTPUT1": difference}),
		answered("a requested output twice", addSub(outputs("OUTPUT0", "OUTPUT0")), map[string]tensor{"OUTPUT0": sum}),
		answered("no batch dimension", request("unbatched", input("INPUT0", "INT32", shape(3, 2), i32(1, 2, 3, 4, 5, 6))),
			map[string]tensor{"OUTPUT0": {"INT32", shape(3, 2), i32(1, 2, 3, 4, 5, 6)}}),
		answered("no batch dimension and nothing in it", request("unbatched", input("INPUT0", "INT32", shape(0, 2), nil)),
			map[string]tensor{"OUTPUT0": {"INT32", shape(0, 2), []byte{}}}),
		answered("custom parameters", identity(parameter("text", "x"), parameter("number", 3), parameter("flag", true), parameter("real", 1.5)), echo),
		answered("priority and timeout", identity(parameter("priority", 3), parameter("timeout", 1_000_000)), echo),
		answered("a sequence id without a sequence model", identity(parameter("sequence_id", "ab"), parameter("sequence_start", true)), echo),
		answered("asking for the final response", identity(parameter("triton_enable_empty_final_response", true)), echo),
		{"infer/large", func(e *Env) {
			data := make([]byte, 4*300_000)
			for i := range data {
				data[i] = byte(i * i >> 8 & 0x3f) // small floats, never NaN, which numpy need not keep
			}
			e.wantOutputs(e.infer(request("identity", input("INPUT0", "FP32", shape(2, 150_000), data))), map[string]tensor{"OUTPUT0": {"FP32", shape(2, 150_000), data}})
		}},
		{"infer/many at once", func(e *Env) {
			errs := make(chan error, 64)
			ctx := e.ctx()
			for i := range cap(errs) {
				go func() {
					v := fp32(float32(i))
					r, err := e.Client.Stub.ModelInfer(ctx, request("identity", input("INPUT0", "FP32", shape(1, 1), v)))
					if err == nil && string(r.RawOutputContents[0]) != string(v) {
						err = status.Errorf(codes.DataLoss, "request %d got the answer of another", i)
					}
					errs <- err
				}()
			}
			for range cap(errs) {
				require.NoError(e, <-errs)
			}
		}},
		{"infer/deadline", func(e *Env) {
			ctx, cancel := context.WithTimeout(e.Context(), 15*time.Millisecond)
			defer cancel()
			_, err := e.Client.Stub.ModelInfer(ctx, slowly(""))
			require.Equal(e, codes.DeadlineExceeded, status.Code(err), "%v", err)
		}},
	}
	return cases
}

func doubled(from int32) []byte {
	v := make([]int32, 16)
	for i := range v {
		v[i] = from + 2*int32(i)
	}
	return i32(v...)
}

// sequenceCases are a sequence and the refusals of its batcher.
func sequenceCases() []Case {
	step := func(v int32, options ...option) *pb.ModelInferRequest { return step("sequence", v, options...) }
	refusal := func(name string, r *pb.ModelInferRequest, message string) Case {
		return Case{"sequence/" + name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), r)
			e.refused(err, codes.InvalidArgument, message)
		}}
	}
	noStart := "inference request for sequence 78 to model 'sequence' must specify the START flag on the first request of the sequence"
	return []Case{
		{"sequence/sums its requests", func(e *Env) {
			for i, c := range []struct {
				r    *pb.ModelInferRequest
				want int32
			}{
				{step(1, parameter(seqID, 77), parameter(start, true)), 1}, {step(10, parameter(seqID, 99), parameter(start, true)), 10},
				{step(4, parameter(seqID, 77)), 5}, {step(5, parameter(seqID, 77), parameter(end, true)), 10},
				{step(10, parameter(seqID, 99), parameter(end, true)), 20},
			} {
				r := e.infer(c.r)
				require.Equal(e, i32(c.want), r.RawOutputContents[0], "step %d", i)
			}
			_, err := e.Client.Stub.ModelInfer(e.ctx(), step(1, parameter(seqID, 77)))
			e.refused(err, codes.InvalidArgument, "inference request for sequence 77 to model 'sequence' must specify the START flag on the first request of the sequence")
		}},
		refusal("without id", step(1), "inference request to model 'sequence' must specify a non-zero or non-empty correlation ID"),
		refusal("without start", step(1, parameter(seqID, 78)), noStart),
		refusal("two rows", request("sequence", input("INPUT", "INT32", shape(2, 1), i32(1, 2)), parameter(seqID, 79), parameter(start, true)),
			"inference request to model 'sequence' must specify batch-size 1 due to requirements of sequence batcher"),
	}
}
