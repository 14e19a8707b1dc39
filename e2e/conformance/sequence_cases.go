// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

const start, end, seqID = "sequence_start", "sequence_end", "sequence_id"

// step is one request of a sequence.
func step(model string, v int32, options ...option) *pb.ModelInferRequest {
	return request(model, append([]option{input("INPUT", "INT32", shape(1, 1), i32(v))}, options...)...)
}

// steps are a whole sequence.
func steps(model string, id option, values ...int32) []*pb.ModelInferRequest {
	list := make([]*pb.ModelInferRequest, len(values))
	for i, v := range values {
		list[i] = step(model, v, id, parameter(start, i == 0), parameter(end, i == len(values)-1))
	}
	return list
}

// sum runs a whole sequence and wants the running sums.
func (e *Env) sum(model string, id option, values ...int32) {
	e.Helper()
	require.NoError(e, e.trySum(model, id, values...))
}

func (e *Env) trySum(model string, id option, values ...int32) error {
	total := int32(0)
	for i, r := range steps(model, id, values...) {
		total += values[i]
		a, err := e.Client.Stub.ModelInfer(e.ctx(), r)
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if string(a.RawOutputContents[0]) != string(i32(total)) {
			return fmt.Errorf("step %d: have %v, want %d", i, a.RawOutputContents[0], total)
		}
	}
	return nil
}

// sequencesCases keep state, which is in one server only.
func sequencesCases() []Case {
	number := func(n int) option { return parameter(seqID, n) }
	mustStart := func(id string) string {
		return "inference request for sequence " + id + " to model 'sequence' must specify the START flag on the first request of the sequence"
	}
	refused := func(e *Env, r *pb.ModelInferRequest, message string) {
		e.Helper()
		_, err := e.Client.Stub.ModelInfer(e.ctx(), r)
		e.refused(err, codes.InvalidArgument, message)
	}
	return []Case{
		{"sequence/twelve, one after the other", func(e *Env) {
			for i := range 12 {
				e.sum("sequence", number(200+i), 1, int32(i), 3, 4, 5)
			}
		}},
		{"sequence/four at once", func(e *Env) {
			errs := make([]error, 4)
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() { errs[i] = e.trySum("sequence", number(220+i), 1, 2, int32(i), 4, 5, 6, 7, 8) })
			}
			all.Wait()
			for _, err := range errs {
				require.NoError(e, err)
			}
		}},
		{"sequence/three in turns", func(e *Env) {
			var lists [3][]*pb.ModelInferRequest
			for i := range lists {
				lists[i] = steps("sequence", number(230+i), 1, 10, 100, 1000)
			}
			for k, want := range []int32{1, 11, 111, 1111} {
				for i := range lists {
					require.Equal(e, i32(want), e.infer(lists[i][k]).RawOutputContents[0], "sequence %d, step %d", i, k)
				}
			}
		}},
		{"sequence/an id used again after its end", func(e *Env) {
			for range 4 {
				e.sum("sequence", number(240), 5, 6)
			}
			refused(e, step("sequence", 1, number(240)), mustStart("240"))
		}},
		{"sequence/started again in the middle", func(e *Env) {
			e.infer(step("sequence", 5, number(241), parameter(start, true)))
			require.Equal(e, i32(7), e.infer(step("sequence", 7, number(241), parameter(start, true))).RawOutputContents[0])
			require.Equal(e, i32(8), e.infer(step("sequence", 1, number(241), parameter(end, true))).RawOutputContents[0])
		}},
		{"sequence/of one request", func(e *Env) {
			e.sum("sequence", number(242), 9)
			refused(e, step("sequence", 1, number(242)), mustStart("242"))
		}},
		{"sequence/the largest id", func(e *Env) { e.sum("sequence", number(1<<63-1), 1, 2) }},
		{"sequence/a negative id", func(e *Env) { e.sum("sequence", number(-5), 1, 2, 3) }},
		{"sequence/an id of zero", func(e *Env) {
			refused(e, step("sequence", 1, number(0), parameter(start, true)), "inference request to model 'sequence' must specify a non-zero or non-empty correlation ID")
		}},
		{"sequence/a text id where the model wants a number", func(e *Env) { e.sum("sequence", parameter(seqID, "abc"), 1, 2) }},
		{"sequence/text ids", func(e *Env) {
			for _, id := range []string{"a", "b", "a longer id with blanks", "ünïcode", "7"} {
				e.sum("sequence_text", parameter(seqID, id), 1, 2, 3, 4)
			}
		}},
		{"sequence/text ids in turns", func(e *Env) {
			a, b := steps("sequence_text", parameter(seqID, "left"), 1, 2, 3), steps("sequence_text", parameter(seqID, "right"), 10, 20, 30)
			for i, want := range []int32{1, 3, 6} {
				require.Equal(e, i32(want), e.infer(a[i]).RawOutputContents[0])
				require.Equal(e, i32(10*want), e.infer(b[i]).RawOutputContents[0])
			}
		}},
		{"sequence/a text id without start", func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), step("sequence_text", 1, parameter(seqID, "none")))
			e.refused(err, codes.InvalidArgument, "inference request for sequence none to model 'sequence_text' must specify the START flag on the first request of the sequence")
		}},
		{"sequence/one id in two models", func(e *Env) {
			a, b := steps("sequence", number(250), 1, 2), steps("sequence_text", parameter(seqID, "250"), 10, 20)
			for i, want := range []int32{1, 3} {
				require.Equal(e, i32(want), e.infer(a[i]).RawOutputContents[0])
				require.Equal(e, i32(10*want), e.infer(b[i]).RawOutputContents[0])
			}
		}},
		{"sequence/on a stream", func(e *Env) {
			var got []string
			for _, m := range e.stream(steps("sequence", number(251), 1, 2, 3, 4, 5)...) {
				got = append(got, summary(m))
			}
			var want []string
			for _, sum := range []int32{1, 3, 6, 10, 15} {
				want = append(want, "|sequence|1|final|"+hex(i32(sum)))
			}
			require.Equal(e, want, got)
		}},
		{"sequence/several on one stream, beside another model", func(e *Env) {
			var requests []*pb.ModelInferRequest
			var want []string
			lists := [2][]*pb.ModelInferRequest{steps("sequence", number(252), 1, 2, 3), steps("sequence", number(253), 10, 20, 30)}
			for i, sum := range []int32{1, 3, 6} {
				requests = append(requests, lists[0][i], identity(), lists[1][i])
				want = append(want, "|sequence|1|final|"+hex(i32(sum)), "|identity|1|final|0000803F00002040", "|sequence|1|final|"+hex(i32(10*sum)))
			}
			require.Equal(e, want, summaries(e.stream(requests...)))
		}},
		{"sequence/begun on a stream, continued without, ended on another", func(e *Env) {
			list := steps("sequence", number(254), 1, 2, 3)
			require.Equal(e, []string{"|sequence|1|final|" + hex(i32(1))}, summaries(e.stream(list[0])))
			require.Equal(e, i32(3), e.infer(list[1]).RawOutputContents[0])
			require.Equal(e, []string{"|sequence|1|final|" + hex(i32(6))}, summaries(e.stream(list[2])))
		}},
		{"sequence/refused on a stream, which goes on", func(e *Env) {
			lines := summaries(e.stream(step("sequence", 1, number(255), id("x")), identity(id("a"))))
			require.Equal(e, []string{"x|||error: " + mustStart("255"), "a|identity|1|final|0000803F00002040"}, lines)
		}},
		{"sequence/over HTTP and gRPC", func(e *Env) {
			send := func(id string, v int, flags string) reply {
				return e.call("POST", inferPath("sequence"), `{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,1],"data":[`+strconv.Itoa(v)+`]}],"parameters":{"sequence_id":`+id+flags+`}}`)
			}
			answer := func(sum string) string {
				return `{"model_name":"sequence","model_version":"1","outputs":[{"name":"OUTPUT","datatype":"INT32","shape":[1,1],"data":[` + sum + `]}]}`
			}
			e.wantHTTP(send("256", 1, `,"sequence_start":true`), 200, jsonType, answer("1"))
			require.Equal(e, i32(3), e.infer(step("sequence", 2, number(256))).RawOutputContents[0])
			e.wantHTTP(send("256", 3, `,"sequence_end":true`), 200, jsonType, answer("6"))
			e.wantHTTP(send("256", 3, ""), 400, jsonType, errorJSON(mustStart("256")))
			e.wantHTTP(send(`"x"`, 3, `,"sequence_start":true`), 200, jsonType, answer("3"))
			e.wantHTTP(send(`"x"`, 4, `,"sequence_end":true`), 200, jsonType, answer("7"))
		}},
	}
}
