// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"

	"github.com/stretchr/testify/require"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// stream sends requests on one stream, closes it and returns every message until its end, which must be OK.
func (e *Env) stream(requests ...*pb.ModelInferRequest) []*pb.ModelStreamInferResponse {
	e.Helper()
	messages, err := e.exchange(e.ctx(), requests)
	require.NoError(e, err)
	return messages
}

// summary is a stream message in one line: error or id, final mark, and the first output's bytes.
func summary(m *pb.ModelStreamInferResponse) string {
	r := m.GetInferResponse()
	parts := []string{r.GetId(), r.GetModelName(), r.GetModelVersion()}
	if p, ok := r.GetParameters()["triton_final_response"]; ok {
		final := "more"
		if p.GetBoolParam() {
			final = "final"
		}
		parts = append(parts, final)
	}
	for _, raw := range r.GetRawOutputContents() {
		parts = append(parts, hex(raw))
	}
	if m.ErrorMessage != "" {
		parts = append(parts, "error: "+m.ErrorMessage)
	}
	return strings.Join(parts, "|")
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

// repeat is a request of the decoupled model.
func repeat(values, delays []int32, options ...option) *pb.ModelInferRequest {
	n := int64(len(values))
	return request("decoupled", append([]option{input("IN", "INT32", shape(n), i32(values...)), input("DELAY", "UINT32", shape(n), i32(delays...))}, options...)...)
}

// streamCases use ModelStreamInfer.
func streamCases() []Case {
	const values = "0000803F00002040" // 1, 2.5
	want := func(name string, requests []*pb.ModelInferRequest, lines ...string) Case {
		return Case{"stream/" + name, func(e *Env) {
			require.Equal(e, append([]string{}, lines...), summaries(e.stream(requests...)))
		}}
	}
	type list = []*pb.ModelInferRequest
	final := parameter("triton_enable_empty_final_response", true)
	slow := request("pause", input("INPUT0", "FP32", shape(1, 2), fp32(1, 2.5)), id("slow"))
	return []Case{
		want("empty", nil),
		want("in order", list{identity(id("a")), identity(id("b"))}, "a|identity|1|final|"+values, "b|identity|1|final|"+values),
		want("in order even when the first is slow", list{slow, identity(id("b"))}, "slow|pause|1|final|"+values, "b|identity|1|final|"+values),
		want("asking for a final response changes nothing for a model that answers once", list{identity(id("a"), final)}, "a|identity|1|final|"+values),
		want("an error does not end it", list{request("nope", id("a")), identity(id("b"))}, "a|||error: "+noSuchModel, "b|identity|1|final|"+values),
		want("a refused request", list{request("identity", input("INPUT0", "INT32", shape(1, 1), i32(1)), id("q"))},
			"q|||error: [request id: q] inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'"),
		want("a model's error", list{request("error", input("INPUT0", "FP32", shape(1, 1), fp32(-1)), id("e"))}, "e|error||final|error: negative input"),
		want("decoupled", list{repeat([]int32{4, 5}, []int32{0, 20}, id("d"))},
			"d|decoupled|1|more|04000000|00000000", "d|decoupled|1|more|05000000|01000000"),
		want("decoupled with final response", list{repeat([]int32{4}, []int32{0}, id("d"), final)}, "d|decoupled|1|more|04000000|00000000", "d|decoupled||final"),
		want("decoupled without answers", list{repeat(nil, nil, id("d"))}),
		want("decoupled without answers, with final response", list{repeat(nil, nil, id("d"), final)}, "d|decoupled||final"),
	}
}
