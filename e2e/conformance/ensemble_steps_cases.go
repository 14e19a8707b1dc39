// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// floats is a request of an ensemble with one input X of one row.
func floats(ensemble string, values ...float32) *pb.ModelInferRequest {
	return request(ensemble, input("X", "FP32", shape(1, int64(len(values))), fp32(values...)))
}

// ensembleStepsCases infer with ensembles of every form: what runs of them, what is between their steps, and what fails.
func ensembleStepsCases() []Case {
	answers := func(name string, r *pb.ModelInferRequest, want map[string]tensor) Case {
		return Case{"ensemble/" + name, func(e *Env) { e.wantOutputs(e.infer(r), want) }}
	}
	refusal := func(name string, r *pb.ModelInferRequest, code codes.Code, message string) Case {
		return Case{"ensemble/" + name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), r)
			e.refused(err, code, message)
		}}
	}
	row := func(values ...float32) tensor { return tensor{"FP32", shape(1, int64(len(values))), fp32(values...)} }
	ints := func(f func(i int32) int32) []byte {
		all := make([]int32, 16)
		for i := range all {
			all[i] = f(int32(i))
		}
		return i32(all...)
	}
	ab := func(ensemble string, options ...option) *pb.ModelInferRequest {
		both := []option{input("A", "INT32", shape(1, 16), ints(func(i int32) int32 { return i })), input("B", "INT32", shape(1, 16), ints(func(i int32) int32 { return 10 * i }))}
		return request(ensemble, append(both, options...)...)
	}
	times := func(n int32) tensor { return tensor{"INT32", shape(1, 16), ints(func(i int32) int32 { return n * i })} }
	diamond := func(options ...option) *pb.ModelInferRequest { return ab("pipeline_diamond", options...) }
	sum, difference := times(13), times(29)
	bothInputs := func(options ...option) *pb.ModelInferRequest {
		return request("pipeline_inputs", append([]option{input("X", "FP32", shape(1, 1), fp32(1)), input("Z", "FP32", shape(1, 1), fp32(2))}, options...)...)
	}
	types := []struct {
		name  string
		value []byte
	}{
		{"BOOL", []byte{1, 0}}, {"UINT8", []byte{255, 0}}, {"UINT16", []byte{255, 255, 0, 1}}, {"UINT32", []byte{255, 255, 255, 255, 0, 0, 0, 1}},
		{"UINT64", []byte{255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 1}}, {"INT8", []byte{128, 127}}, {"INT16", []byte{0, 128, 255, 127}},
		{"INT32", i32(-1<<31, 1<<31-1)}, {"INT64", []byte{0, 0, 0, 0, 0, 0, 0, 128, 255, 255, 255, 255, 255, 255, 255, 127}}, {"FP32", []byte{0, 0, 128, 127, 0, 0, 192, 127}},
		{"FP64", []byte{0, 0, 0, 0, 0, 0, 240, 255, 1, 0, 0, 0, 0, 0, 0, 0}}, {"STRING", bytesElements("", "\x00\xff\xc3")},
	}
	every, everyOut := request("pipeline_types"), map[string]tensor{}
	for _, t := range types {
		datatype := t.name
		if datatype == "STRING" {
			datatype = "BYTES"
		}
		with(every, input("IN_"+t.name, datatype, shape(1, 2), t.value))
		everyOut["OUT_"+t.name] = tensor{datatype, shape(1, 2), t.value}
	}
	deadlock := "in ensemble 'pipeline_tap', " + noID + "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
	half := []byte{0, 0x7c, 0, 0x80, 1, 0, 0, 0x7e} // infinite, -0, the least above 0, no number
	given := func(options ...option) *pb.ModelInferRequest {
		return request("pipeline_given", append([]option{input("X", "FP32", shape(1, 2), fp32(1, 2))}, options...)...)
	}
	return []Case{
		answers("one step", floats("pipeline_one", 1, 2, 3), map[string]tensor{"Y": row(1, 2, 3)}),
		refusal("the only step fails", floats("pipeline_one", 1, -2, 3), codes.Internal, "in ensemble 'pipeline_one', negative input"),
		answers("five steps", ab("pipeline_five"), map[string]tensor{"SUM": times(24), "DIFFERENCE": times(2)}),
		answers("six steps", floats("pipeline_six", 1, 2, 3), map[string]tensor{"Y": row(1, 2, 3)}),
		refusal("the fifth of six steps fails", floats("pipeline_six", 1, -2, 3), codes.Internal, "in ensemble 'pipeline_six', negative input"),
		answers("a diamond", diamond(), map[string]tensor{"SUM": sum, "DIFFERENCE": difference}),
		answers("one output of a diamond", diamond(outputs("DIFFERENCE")), map[string]tensor{"DIFFERENCE": difference}),
		answers("an output asked for twice", diamond(outputs("SUM", "SUM")), map[string]tensor{"SUM": sum}),
		{"ensemble/the id, priority, timeout and other parameters of a request", func(e *Env) {
			resp := e.infer(diamond(id("an id"), parameter("priority", 1), parameter("timeout", 60_000_000), parameter("other", "text")))
			require.Equal(e, "an id", resp.Id)
			e.wantOutputs(resp, map[string]tensor{"SUM": sum, "DIFFERENCE": difference})
		}},
		answers("two branches", floats("pipeline_branches", 4), map[string]tensor{"FIRST": row(4), "SECOND": row(4)}),
		refusal("one of two branches fails", floats("pipeline_branches", -4), codes.Internal, "in ensemble 'pipeline_branches', negative input"),
		answers("the branch that fails is not asked for", with(floats("pipeline_branches", -4), outputs("FIRST")), map[string]tensor{"FIRST": row(-4)}),
		answers("an output that a further step takes", floats("pipeline_tap", 5), map[string]tensor{"MIDDLE": row(5), "LAST": row(5)}),
		refusal("an output that a further step takes is not asked for", with(floats("pipeline_tap", 5), outputs("LAST")), codes.InvalidArgument, deadlock),
		refusal("an output that a further step takes is asked for alone", with(floats("pipeline_tap", 5), outputs("MIDDLE")), codes.InvalidArgument, deadlock),
		answers("two inputs", bothInputs(), map[string]tensor{"FIRST": row(1), "SECOND": row(2)}),
		answers("an input that no step needs", bothInputs(outputs("SECOND")), map[string]tensor{"SECOND": row(2)}),
		refusal("an input that only steps after the first would need", bothInputs(outputs("FIRST")), codes.InvalidArgument, strings.ReplaceAll(deadlock, "pipeline_tap", "pipeline_inputs")),
		answers("a step makes no output that the next may do without", floats("pipeline_optional", 6, 7), map[string]tensor{"Y": row(6, 7)}),
		{"ensemble/no output that is asked for is made", func(e *Env) {
			resp := e.infer(with(floats("pipeline_optional", 6), outputs("Z")))
			require.Empty(e, resp.Outputs)
			require.Empty(e, resp.Parameters)
		}},
		refusal("a step makes no output that the next cannot do without", with(floats("pipeline_required", 6), id("r")), codes.InvalidArgument,
			"in ensemble 'pipeline_required', [request id: r] expected 1 inputs but got 0 inputs for model 'versions_specific'. Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s)."),
		answers("a step that reshapes", request("pipeline_reshaped", input("X", "FP32", shape(3, 4), make([]byte, 48))), map[string]tensor{"RANK": {"INT32", shape(3, 1), i32(3, 3, 3)}}),
		answers("every type between two steps", every, everyOut),
		answers("FP16 between two steps", request("pipeline_half", input("X", "FP16", shape(2, 2), half)), map[string]tensor{"Y": {"FP16", shape(2, 2), half}}),
		answers("a tensor without elements between two steps", request("pipeline_optional", input("X", "FP32", shape(2, 0), nil)), map[string]tensor{"Y": {"FP32", shape(2, 0), []byte{}}}),
		answers("an input that a request may leave out", given(input("Z", "INT32", shape(1, 1), i32(7))), map[string]tensor{"Y": row(1, 2), "GIVEN": {"INT32", shape(1, 1), i32(7)}}),
		answers("an input that a request leaves out", given(), map[string]tensor{"Y": row(1, 2)}),
		answers("no batch dimension", request("pipeline_rows", input("X", "FP32", shape(2, 3), fp32(1, 2, 3, 4, 5, 6))), map[string]tensor{"Y": {"FP32", shape(2, 3), fp32(1, 2, 3, 4, 5, 6)}}),
		refusal("no batch dimension, and more rows than a step may have", request("pipeline_rows", input("X", "FP32", shape(9, 1), make([]byte, 36)), id("n")), codes.InvalidArgument,
			"in ensemble 'pipeline_rows', [request id: n] inference request batch-size must be <= 8 for 'failing'"),
		answers("a step without a batch dimension", request("pipeline_unbatched", input("X", "INT32", shape(2, 2), i32(1, 2, 3, 4))), map[string]tensor{"Y": {"INT32", shape(2, 2), i32(1, 2, 3, 4)}}),
		answers("an ensemble of an ensemble", floats("pipeline_nested", 8), map[string]tensor{"Y": row(8)}),
		refusal("a step of an ensemble of an ensemble fails", floats("pipeline_nested", -8), codes.Internal, "in ensemble 'pipeline_nested', in ensemble 'pipeline_inner', negative input"),
		answers("two versions of a model", request("pipeline_versions", input("X", "INT32", shape(2, 1), i32(1, 2))), map[string]tensor{"Y": {"INT32", shape(2, 1), i32(401, 402)}}),
		{"ensemble/many at once", func(e *Env) {
			const n = 24
			ended := make([]<-chan error, n)
			for i := range ended {
				r := floats("pipeline_six", float32(i))
				if i%6 == 5 {
					r = floats("pipeline_six", -1)
				}
				ended[i] = later(func() error {
					resp, err := e.Client.Stub.ModelInfer(e.ctx(), r)
					if err == nil {
						e.wantOutputs(resp, map[string]tensor{"Y": row(float32(i))})
					}
					return err
				})
			}
			for i := range ended {
				err := <-ended[i]
				if i%6 == 5 {
					e.refused(err, codes.Internal, "in ensemble 'pipeline_six', negative input")
				} else {
					require.NoError(e, err)
				}
			}
		}},
		{"ensemble/several on a stream", func(e *Env) {
			messages := e.stream(with(floats("pipeline_branches", 1), id("a"), outputs("FIRST")), with(floats("pipeline_nested", -1), id("b")), with(floats("pipeline_nested", 2), id("c")))
			require.Len(e, messages, 3)
			require.Equal(e, []string{"a|pipeline_branches|1|final|" + hex(fp32(1)), "b|pipeline_nested||final|error: in ensemble 'pipeline_nested', in ensemble 'pipeline_inner', negative input", "c|pipeline_nested|1|final|" + hex(fp32(2))},
				[]string{summary(messages[0]), summary(messages[1]), summary(messages[2])})
		}},
	}
}

// ensembleMiddleCases change something while an ensemble is between two steps. Each leaves everything loaded.
func ensembleMiddleCases() []Case {
	state := func(e *Env, model string) string {
		index, err := e.Client.Index(e.ctx(), true)
		require.NoError(e, err)
		for _, m := range index {
			if m.Name == model {
				return m.State
			}
		}
		return "not ready"
	}
	// infers sends a request whose first step waits in a gate.
	infers := func(e *Env, ctx context.Context) (*gate, <-chan error) {
		g := e.close("slow")
		answer := later(func() error {
			resp, err := e.Client.Stub.ModelInfer(ctx, floats("pipeline_tail", 3))
			if err == nil {
				e.wantOutputs(resp, map[string]tensor{"Y": {"FP32", shape(1, 1), fp32(3)}})
			}
			return err
		})
		g.executes(1)
		return g, answer
	}
	return []Case{
		{"ensemble/cancelled in the middle", func(e *Env) {
			ctx, cancel := context.WithCancel(e.ctx())
			defer cancel()
			g, answer := infers(e, ctx)
			cancel()
			require.Equal(e, codes.Canceled, status.Code(<-answer))
			g.open()
			e.infer(floats("pipeline_tail", 1))
		}},
		{"ensemble/the steps after a client has left", func(e *Env) {
			before := e.quiet("tail")
			ctx, cancel := context.WithCancel(e.ctx())
			defer cancel()
			g, answer := infers(e, ctx)
			cancel()
			require.Equal(e, codes.Canceled, status.Code(<-answer))
			e.statistics("tail") // on the same connection: the target has read that the first is cancelled
			g.open()
			e.infer(floats("pipeline_tail", 1)) // its steps come after those of the first
			ran := func() uint64 {
				return e.statistics("tail").InferenceStats.Success.Count - before.InferenceStats.Success.Count
			}
			for patience := time.Now().Add(2 * time.Second); ran() < 2 && time.Now().Before(patience); {
				time.Sleep(10 * time.Millisecond)
			}
			require.Equal(e, 2, int(ran()), "the last step of both requests runs") //nolint:gosec // few
		}},
		{"ensemble/the model of a later step is unloaded in the middle", func(e *Env) {
			defer func() { require.NoError(e, e.Target.Load(e.ctx(), "tail")) }()
			g, answer := infers(e, e.ctx())
			unloaded := later(func() error { return e.Target.Unload(e.ctx(), "tail") })
			e.until(func() bool { return state(e, "pipeline_tail") == "not ready" }, 5*time.Millisecond, "the ensemble leaves with the model")
			g.open()
			require.NoError(e, <-answer)
			require.NoError(e, <-unloaded)
			e.until(func() bool {
				_, err := e.Client.Stub.ModelInfer(e.ctx(), floats("pipeline_tail", 1))
				return status.Code(err) == codes.NotFound
			}, 5*time.Millisecond, "it is not served any more")
		}},
		{"ensemble/the model of a later step is loaded again in the middle", func(e *Env) {
			g, answer := infers(e, e.ctx())
			loaded := later(func() error { return e.Target.Load(e.ctx(), "tail") })
			time.Sleep(50 * time.Millisecond) // so that the load is under way, more likely than not: either order has the same answer
			g.open()
			require.NoError(e, <-answer)
			require.NoError(e, <-loaded)
			e.infer(floats("pipeline_tail", 1))
		}},
	}
}

// ensembleStatisticsCases count what ensembles and their models were asked for.
func ensembleStatisticsCases() []Case {
	return []Case{
		{"ensemble/statistics of several rows, and of steps that do not run", func(e *Env) {
			before, first, second := e.quiet("pipeline_branches"), e.quiet("pause"), e.quiet("failing")
			e.infer(with(request("pipeline_branches", input("X", "FP32", shape(3, 1), fp32(1, 2, 3))), outputs("FIRST")))
			after := e.settled(before, 1)
			require.Equal(e, []uint64{3, 1, 1}, []uint64{after.InferenceCount - before.InferenceCount, after.ExecutionCount - before.ExecutionCount, batchCount(after, 3) - batchCount(before, 3)})
			require.Equal(e, before.InferenceStats.Success.Count+1, after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceStats.ComputeInfer.Count+1, after.InferenceStats.ComputeInfer.Count)
			require.GreaterOrEqual(e, after.LastInference, before.LastInference+1)
			ran := e.settled(first, 1)
			require.Equal(e, []uint64{3, 1}, []uint64{ran.InferenceCount - first.InferenceCount, ran.InferenceStats.Success.Count - first.InferenceStats.Success.Count})
			require.Equal(e, second.InferenceStats.Success.Count, e.quiet("failing").InferenceStats.Success.Count)
		}},
		{"ensemble/statistics of an ensemble of an ensemble", func(e *Env) {
			before, inner, first, second := e.quiet("pipeline_nested"), e.quiet("pipeline_inner"), e.quiet("identity"), e.quiet("failing")
			e.infer(floats("pipeline_nested", 1))
			require.Equal(e, before.InferenceCount+1, e.settled(before, 1).InferenceCount)
			require.Equal(e, inner.InferenceCount+1, e.settled(inner, 1).InferenceCount)
			require.Equal(e, first.InferenceStats.Success.Count+1, e.settled(first, 1).InferenceStats.Success.Count, "the inner's first step")
			require.Equal(e, second.InferenceStats.Success.Count+1, e.settled(second, 1).InferenceStats.Success.Count, "and its second")
		}},
		{"ensemble/statistics of a request that fails", func(e *Env) {
			before := e.quiet("pipeline_one")
			_, err := e.Client.Stub.ModelInfer(e.ctx(), floats("pipeline_one", -1))
			e.refused(err, codes.Internal, "in ensemble 'pipeline_one', negative input")
			failed := func() uint64 {
				return e.statistics("pipeline_one").InferenceStats.Fail.Count - before.InferenceStats.Fail.Count
			}
			e.until(func() bool { return failed() > 0 }, 5*time.Millisecond)
			for patience := time.Now().Add(2 * time.Second); failed() < 2 && time.Now().Before(patience); {
				time.Sleep(10 * time.Millisecond)
			}
			after := e.quiet("pipeline_one")
			require.Equal(e, []uint64{0, 0, 0}, []uint64{after.InferenceCount - before.InferenceCount, after.ExecutionCount - before.ExecutionCount, batchCount(after, 1) - batchCount(before, 1)})
			require.Equal(e, before.InferenceStats.Success.Count, after.InferenceStats.Success.Count)
			require.Equal(e, 2, int(failed()), "it counts twice") //nolint:gosec // few
		}},
		{"ensemble/statistics of the steps before one that fails, and after it", func(e *Env) {
			both, before, fails := e.quiet("pause"), e.quiet("identity"), e.quiet("failing")
			_, err := e.Client.Stub.ModelInfer(e.ctx(), floats("pipeline_six", -1))
			e.refused(err, codes.Internal, "in ensemble 'pipeline_six', negative input")
			require.Equal(e, before.InferenceStats.Success.Count+3, e.settled(before, 3).InferenceStats.Success.Count)
			require.Equal(e, fails.InferenceStats.Success.Count+1, e.settled(fails, 1).InferenceStats.Success.Count, "an error in the model's answer is a success")
			require.Equal(e, both.InferenceStats.Success.Count+1, e.settled(both, 1).InferenceStats.Success.Count, "the second step, and not the sixth")
		}},
	}
}
