// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"io"
	"slices"
	"strconv"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// streamOrderCases mix on one stream what a proxy may treat in different ways: requests that could share an execution with others', and
// those that could not.
func streamOrderCases() []Case {
	type list = []*pb.ModelInferRequest
	const plain = "identity|1|final|0000803F00002040"
	slow := "s|pause|1|final|0000803F"
	best := func(name string) *pb.ModelInferRequest { return identity(id(name), classes("OUTPUT0", 1)) }
	class := "identity|1|final|" + hex(bytesElements("2.500000:1"))
	ordered := func(name string, requests list, lines ...string) Case {
		return Case{"stream/" + name, func(e *Env) { require.Equal(e, lines, summaries(e.stream(requests...))) }}
	}
	return []Case{
		ordered("a classification between requests that it could not run with", list{slowly("s"), best("x"), identity(id("a")), best("y"), identity(id("b"))},
			slow, "x|"+class, "a|"+plain, "y|"+class, "b|"+plain),
		ordered("a classification first, a slow one after it", list{best("x"), slowly("s"), best("y")}, "x|"+class, slow, "y|"+class),
		ordered("without ids, an unknown model between", list{slowly(""), identity(), request("nope"), identity()},
			"|pause|1|final|0000803F", "|"+plain, "|||error: "+noSuchModel, "|"+plain),
		ordered("one id for requests of every kind", list{slowly("i"), best("i"), request("nope", id("i")), identity(id("i"))},
			"i|pause|1|final|0000803F", "i|"+class, "i|||error: "+noSuchModel, "i|"+plain),
		ordered("the wish for a final response is a flag, for a model that answers once too", list{
			identity(id("a"), parameter("triton_enable_empty_final_response", 1)), identity(id("b")),
		}, "a|||error: invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.", "b|"+plain),
		ordered("a reserved parameter", list{identity(id("a"), parameter("triton_mine", 1)), identity(id("b"))},
			"a|||error: parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response", "b|"+plain),
		ordered("parameters that are refused", list{
			identity(id("a"), parameter("mine", nil)), identity(id("b"), parameter("timeout", "1")), identity(id("c"), parameter("priority", -1)), identity(id("d"), parameter("mine", 1.5)),
		}, "a|||error: invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.",
			"b|||error: invalid value type for 'timeout' parameter, expected int64_param.", "c|||error: invalid value for 'priority', expected value >= 0.", "d|"+plain),
		{"stream/a decoupled model does not hold up the others", func(e *Env) {
			lines := summaries(e.stream(repeat([]int32{1}, []int32{1000}, id("d")), identity(id("a")), best("x")))
			require.Equal(e, []string{"a|" + plain, "x|" + class, "d|decoupled|1|more|01000000|00000000"}, lines)
		}},
		{"stream/three hundred requests before the first answer is read", func(e *Env) {
			var requests list
			var lines []string
			for i := range 300 {
				text := strconv.Itoa(i)
				if i%50 == 0 {
					requests, lines = append(requests, best(text)), append(lines, text+"|"+class)
					continue
				}
				requests, lines = append(requests, identity(id(text))), append(lines, text+"|"+plain)
			}
			require.Equal(e, lines, summaries(e.stream(requests...)))
		}},
		{"stream/what is no request ends it after the answers before", func(e *Env) {
			s, err := e.Client.Conn().NewStream(e.ctx(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
				pb.GRPCInferenceService_ModelStreamInfer_FullMethodName, grpc.ForceCodecV2(encoded{}))
			require.NoError(e, err)
			for _, m := range []any{slowly("s"), identity(id("a")), []byte{0xff, 0xff}, identity(id("b"))} {
				require.NoError(e, s.SendMsg(m))
			}
			var lines []string
			for {
				var m pb.ModelStreamInferResponse
				if err = s.RecvMsg(&m); err != nil {
					break
				}
				lines = append(lines, summary(&m))
			}
			require.ErrorIs(e, err, io.EOF)
			require.Equal(e, []string{slow, "a|" + plain}, lines)
		}},
	}
}

// encoded is a codec that takes messages that are encoded already, well or badly, as bytes.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	data, ok := v.([]byte)
	if !ok {
		var err error
		if data, err = proto.Marshal(v.(proto.Message)); err != nil {
			return nil, err
		}
	}
	return mem.BufferSlice{mem.SliceBuffer(slices.Clone(data))}, nil
}

func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}
