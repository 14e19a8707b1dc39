// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // for grpc.UseCompressor
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// mixed is n requests of four models in turns, with ids that number them, and the lines of their answers.
func mixed(n int) (requests []*pb.ModelInferRequest, lines []string) {
	for i := range n {
		v, text := id(strconv.Itoa(i)), fmt.Sprintf("%d|", i)
		switch i % 4 {
		case 0:
			requests = append(requests, request("identity", input("INPUT0", "FP32", shape(1, 1), fp32(float32(i))), v))
			text += "identity|1|final|" + hex(fp32(float32(i)))
		case 1:
			requests = append(requests, request("string", input("INPUT0", "BYTES", shape(1, 1), bytesElements("a")), v))
			text += "string|1|final|" + hex(bytesElements("A"))
		case 2:
			requests = append(requests, request("unbatched", input("INPUT0", "INT32", shape(1, 2), i32(int32(i), 1)), v))
			text += "unbatched|1|final|" + hex(i32(int32(i), 1))
		case 3:
			requests = append(requests, request("half", input("INPUT0", "FP16", shape(1, 2), []byte{byte(i), 0, 0, 0}), v))
			text += "half|1|final|" + hex([]byte{byte(i), 0, 0, 0})
		}
		lines = append(lines, text)
	}
	return requests, lines
}

func hex(b []byte) string { return strings.ToUpper(hexOf(b)) }

func summaries(messages []*pb.ModelStreamInferResponse) []string {
	lines := make([]string, len(messages))
	for i, m := range messages {
		lines[i] = summary(m)
	}
	return lines
}

// slowly is a request that takes 40 ms.
func slowly(name string) *pb.ModelInferRequest {
	return request("pause", input("INPUT0", "FP32", shape(1, 1), fp32(1)), id(name))
}

// acrossCases are what a proxy in front of several servers could get wrong: order on a stream, answers of one caller given to another.
func acrossCases() []Case {
	const slow1 = "s|pause|1|final|0000803F"
	ordered := func(name string, requests []*pb.ModelInferRequest, lines ...string) Case {
		return Case{"stream/" + name, func(e *Env) { require.Equal(e, lines, summaries(e.stream(requests...))) }}
	}
	type list = []*pb.ModelInferRequest
	nope := func(name string) *pb.ModelInferRequest { return request("nope", id(name)) }
	final := parameter("triton_enable_empty_final_response", true)
	return []Case{
		{"stream/answers of four models keep the order of 40 requests", func(e *Env) {
			requests, lines := mixed(40)
			require.Equal(e, lines, summaries(e.stream(requests...)))
		}},
		{"stream/several at once, each in its own order", func(e *Env) {
			requests, lines := mixed(12)
			got := make([][]string, 6)
			var all sync.WaitGroup
			for i := range got {
				all.Go(func() {
					messages, err := e.exchange(e.ctx(), requests)
					got[i] = summaries(messages)
					if err != nil {
						got[i] = append(got[i], err.Error())
					}
				})
			}
			all.Wait()
			for _, g := range got {
				require.Equal(e, lines, g)
			}
		}},
		{"stream/question and answer in turns", func(e *Env) {
			requests, lines := mixed(8)
			s, err := e.Client.Stub.ModelStreamInfer(e.ctx())
			require.NoError(e, err)
			for i, r := range requests {
				require.NoError(e, s.Send(r))
				m, err := s.Recv()
				require.NoError(e, err)
				require.Equal(e, lines[i], summary(m))
			}
			require.NoError(e, s.CloseSend())
			_, err = s.Recv()
			require.ErrorIs(e, err, io.EOF)
		}},
		ordered("slow, then three other models", list{slowly("s"), identity(id("a")), request("unbatched", input("INPUT0", "INT32", shape(0, 2), nil), id("u")), identity(id("b"))},
			slow1, "a|identity|1|final|0000803F00002040", "u|unbatched|1|final|", "b|identity|1|final|0000803F00002040"),
		ordered("two slow ones of one model", list{slowly("s"), slowly("t"), identity(id("a"))}, slow1, "t|pause|1|final|0000803F", "a|identity|1|final|0000803F00002040"),
		ordered("a refusal behind a slow one", list{slowly("s"), nope("n"), identity(id("a"))}, slow1, "n|||error: "+noSuchModel, "a|identity|1|final|0000803F00002040"),
		ordered("a wrong request behind a slow one", list{slowly("s"), request("identity", input("INPUT0", "INT32", shape(1, 1), i32(1)), id("q")), identity(id("a"))}, slow1, "q|||error: [request id: q] inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'", "a|identity|1|final|0000803F00002040"),
		ordered("a model's error behind a slow one", list{slowly("s"), request("error", input("INPUT0", "FP32", shape(1, 1), fp32(-1)), id("e")), identity(id("a"))}, slow1, "e|error||final|error: negative input", "a|identity|1|final|0000803F00002040"),
		ordered("errors of every kind between answers", list{identity(id("a")), nope("n"), request("error", input("INPUT0", "FP32", shape(1, 1), fp32(-1)), id("e")), identity(id("b")), request("identity", id("m")), identity(id("c"))}, "a|identity|1|final|0000803F00002040", "n|||error: "+noSuchModel, "e|error||final|error: negative input", "b|identity|1|final|0000803F00002040",
			"m|||error: [request id: m] expected 1 inputs but got 0 inputs for model 'identity'. Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s).", "c|identity|1|final|0000803F00002040"),
		ordered("an unknown version", list{identity(version("9"), id("v")), identity(id("a"))}, "v|||error: Request for unknown model: 'identity' version 9 is not found", "a|identity|1|final|0000803F00002040"),
		{"stream/an exception of the model", func(e *Env) {
			lines := summaries(e.stream(request("error", input("INPUT0", "FP32", shape(1, 1), fp32(-1000)), id("e")), identity(id("a"))))
			require.Len(e, lines, 2)
			// A real server adds the python traceback.
			require.Regexp(e, "^e\\|error\\|\\|final\\|error: Failed to process the request\\(s\\) for model 'error_0_0', message: RuntimeError: the whole execution fails", lines[0])
			require.Equal(e, "a|identity|1|final|0000803F00002040", lines[1])
		}},
		ordered("several answers of one execution to a request", list{request("error", input("INPUT0", "FP32", shape(1, 1), fp32(-500)), id("e")), identity(id("a"))},
			"e|error||final|error: Failed to process the request(s) for model 'error_0_0', message: Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n",
			"a|identity|1|final|0000803F00002040"),
		ordered("an unknown shared memory region", list{inRegion("zz"), identity(id("a"))}, "r|||error: Unable to find shared memory region: 'zz'", "a|identity|1|final|0000803F00002040"),
		ordered("typed contents, a requested output, a version", list{
			request("add_sub", typed("INPUT0", "INT32", shape(1, 16), &pb.InferTensorContents{IntContents: make([]int32, 16)}),
				typed("INPUT1", "INT32", shape(1, 16), &pb.InferTensorContents{IntContents: make([]int32, 16)}), outputs("OUTPUT1"), version("1"), id("t")),
		}, "t|add_sub|1|final|"+hex(make([]byte, 64))),
		ordered("ids may repeat", list{identity(id("a")), identity(id("a")), request("string", input("INPUT0", "BYTES", shape(1, 1), bytesElements("a")), id("a"))},
			"a|identity|1|final|0000803F00002040", "a|identity|1|final|0000803F00002040", "a|string|1|final|"+hex(bytesElements("A"))),
		ordered("without ids", list{identity(), request("string", input("INPUT0", "BYTES", shape(1, 1), bytesElements("a")))}, "|identity|1|final|0000803F00002040", "|string|1|final|"+hex(bytesElements("A"))),
		ordered("with priority and timeout", list{identity(id("a"), parameter("priority", 1), parameter("timeout", 1_000_000))}, "a|identity|1|final|0000803F00002040"),
		{"stream/decoupled: answers of one request are in order, of several in turns or not", func(e *Env) {
			byID := map[string][]string{}
			for _, m := range e.stream(repeat([]int32{1, 2, 3}, []int32{5, 5, 5}, id("a"), final), repeat([]int32{7}, []int32{0}, id("b"), final), repeat(nil, nil, id("c"), final)) {
				byID[m.GetInferResponse().GetId()] = append(byID[m.GetInferResponse().GetId()], summary(m))
			}
			require.Equal(e, map[string][]string{
				"a": {"a|decoupled|1|more|01000000|00000000", "a|decoupled|1|more|02000000|01000000", "a|decoupled|1|more|03000000|02000000", "a|decoupled||final"},
				"b": {"b|decoupled|1|more|07000000|00000000", "b|decoupled||final"},
				"c": {"c|decoupled||final"},
			}, byID)
		}},
		{"stream/decoupled beside others: all come", func(e *Env) {
			byID := map[string][]string{}
			for _, m := range e.stream(identity(id("a")), repeat([]int32{1, 2}, []int32{5, 5}, id("d"), final), identity(id("b")), slowly("s"), identity(id("c"))) {
				byID[m.GetInferResponse().GetId()] = append(byID[m.GetInferResponse().GetId()], summary(m))
			}
			require.Equal(e, map[string][]string{
				"a": {"a|identity|1|final|0000803F00002040"}, "b": {"b|identity|1|final|0000803F00002040"}, "c": {"c|identity|1|final|0000803F00002040"},
				"s": {slow1}, "d": {"d|decoupled|1|more|01000000|00000000", "d|decoupled|1|more|02000000|01000000", "d|decoupled||final"},
			}, byID)
		}},
		{"stream/what is not decoupled keeps its order beside what is", func(e *Env) {
			var lines []string
			for _, line := range summaries(e.stream(repeat([]int32{1}, []int32{60}, id("d"), final), slowly("s"), identity(id("a")), nope("n"),
				request("string", input("INPUT0", "BYTES", shape(1, 1), bytesElements("a")), id("b")))) {
				if !strings.HasPrefix(line, "d|") {
					lines = append(lines, line)
				}
			}
			require.Equal(e, []string{slow1, "a|identity|1|final|0000803F00002040", "n|||error: " + noSuchModel, "b|string|1|final|" + hex(bytesElements("A"))}, lines)
		}},
		ordered("decoupled, where the final response is not wanted by name", list{repeat([]int32{4}, []int32{0}, id("d"), parameter("triton_enable_empty_final_response", false))}, "d|decoupled|1|more|04000000|00000000"),
		ordered("the wish for a final response is a flag", list{repeat([]int32{4}, []int32{0}, id("d"), parameter("triton_enable_empty_final_response", "yes"))}, "d|||error: invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."),
		ordered("decoupled with a wrong request", list{request("decoupled", input("IN", "FP32", shape(1), fp32(1)), input("DELAY", "UINT32", shape(1), i32(0)), id("d"), final)}, "d|||error: [request id: d] inference input 'IN' data-type is 'FP32', but model 'decoupled' expects 'INT32'"),
		{"stream/a caller that goes leaves the next one alone", func(e *Env) {
			ctx, cancel := context.WithCancel(e.ctx())
			s, err := e.Client.Stub.ModelStreamInfer(ctx)
			require.NoError(e, err)
			require.NoError(e, s.Send(identity(id("a"))))
			_, err = s.Recv()
			require.NoError(e, err)
			require.NoError(e, s.Send(slowly("s")))
			cancel()
			_, err = s.Recv()
			require.Equal(e, codes.Canceled, status.Code(err))
			requests, lines := mixed(4)
			require.Equal(e, lines, summaries(e.stream(requests...)))
		}},
		{"stream/past its deadline", func(e *Env) {
			ctx, cancel := context.WithTimeout(e.Context(), 15*time.Millisecond)
			defer cancel()
			_, err := e.exchange(ctx, list{slowly("s")})
			require.Equal(e, codes.DeadlineExceeded, status.Code(err), "%v", err)
		}},
		{"stream/large", func(e *Env) {
			data := make([]byte, 4<<20)
			messages := e.stream(request("identity", input("INPUT0", "FP32", shape(1, 1<<20), data), id("l")), identity(id("a")))
			require.Len(e, messages, 2)
			require.Len(e, messages[0].InferResponse.RawOutputContents[0], 4<<20)
			require.Equal(e, "a", messages[1].InferResponse.Id)
		}},
		{"stream/compressed", func(e *Env) {
			requests, lines := mixed(4)
			s, err := e.Client.Stub.ModelStreamInfer(e.ctx(), grpc.UseCompressor("gzip"))
			require.NoError(e, err)
			messages, err := drive(s, requests)
			require.NoError(e, err)
			require.Equal(e, lines, summaries(messages))
		}},

		{"grpc/compressed request", func(e *Env) {
			r, err := e.Client.Stub.ModelInfer(e.ctx(), identity(), grpc.UseCompressor("gzip"))
			require.NoError(e, err)
			require.Equal(e, fp32(1, 2.5), r.RawOutputContents[0])
		}},
		{"grpc/metadata of the caller does no harm", func(e *Env) {
			ctx := metadata.AppendToOutgoingContext(e.ctx(), "x-mine", "1", "x-mine", "2", "x-bin", "\x00\xff", "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
			r, err := e.Client.Stub.ModelInfer(ctx, identity(id("m")))
			require.NoError(e, err)
			require.Equal(e, "m", r.Id)
		}},
		{"grpc/metadata of an answer", func(e *Env) {
			var header, trailer metadata.MD
			_, err := e.Client.Stub.ModelInfer(e.ctx(), identity(), grpc.Header(&header), grpc.Trailer(&trailer))
			require.NoError(e, err)
			require.Empty(e, custom(header))
			require.Empty(e, custom(trailer))
		}},
		{"grpc/health is not watched", func(e *Env) {
			w, err := grpc_health_v1.NewHealthClient(e.Client.Conn()).Watch(e.ctx(), &grpc_health_v1.HealthCheckRequest{})
			require.NoError(e, err)
			_, err = w.Recv()
			e.refused(err, codes.Unimplemented, "")
		}},
		{"grpc/no reflection", func(e *Env) {
			err := e.Client.Conn().Invoke(e.ctx(), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", &pb.ServerLiveRequest{}, &pb.ServerLiveResponse{})
			e.refused(err, codes.Unimplemented, "")
		}},
		{"infer/every caller gets its own answer", func(e *Env) {
			e.eachItsOwn(96, func(i int) (*pb.ModelInferRequest, map[string]tensor) {
				rows := int64(i%3 + 1)
				values := make([]float32, rows*int64(i%2+1))
				for k := range values {
					values[k] = float32(100*i + k)
				}
				dims := shape(rows, int64(i%2+1))
				return request("identity", input("INPUT0", "FP32", dims, fp32(values...)), id("caller "+strconv.Itoa(i))), map[string]tensor{"OUTPUT0": {"FP32", dims, fp32(values...)}}
			})
		}},
		{"infer/every caller gets its own strings", func(e *Env) {
			e.eachItsOwn(48, func(i int) (*pb.ModelInferRequest, map[string]tensor) {
				words := make([]string, i%3+1)
				for k := range words {
					words[k] = strings.Repeat("X", i) + strconv.Itoa(k)
				}
				dims := shape(int64(len(words)), 1)
				return request("string", input("INPUT0", "BYTES", dims, bytesElements(words...)), id(strconv.Itoa(i))), map[string]tensor{"OUTPUT0": {"BYTES", dims, bytesElements(words...)}}
			})
		}},
		{"infer/every caller gets the outputs that it asked for", func(e *Env) {
			e.eachItsOwn(48, func(i int) (*pb.ModelInferRequest, map[string]tensor) {
				sum, difference := tensor{"INT32", shape(1, 16), seq16(1)}, tensor{"INT32", shape(1, 16), seq16(-1)}
				switch i % 4 {
				case 0:
					return addSub(), map[string]tensor{"OUTPUT0": sum, "OUTPUT1": difference}
				case 1:
					return addSub(outputs("OUTPUT0")), map[string]tensor{"OUTPUT0": sum}
				case 2:
					return addSub(outputs("OUTPUT1"), id("i")), map[string]tensor{"OUTPUT1": difference}
				default:
					return addSub(outputs("OUTPUT1", "OUTPUT0"), parameter("mine", i)), map[string]tensor{"OUTPUT0": sum, "OUTPUT1": difference}
				}
			})
		}},
		{"infer/one caller's error is not another's", func(e *Env) {
			ctx := e.ctx()
			errs := make([]error, 24)
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() {
					v := float32(i)
					if i%3 == 0 {
						v = -1
					}
					_, errs[i] = e.Client.Stub.ModelInfer(ctx, request("error", input("INPUT0", "FP32", shape(1, 1), fp32(v))))
				})
			}
			all.Wait()
			for i, err := range errs {
				if i%3 == 0 {
					e.refused(err, codes.Internal, "negative input")
				} else {
					require.NoError(e, err, "caller %d", i)
				}
			}
		}},
		{"infer/an optional input, given or not", func(e *Env) {
			e.eachItsOwn(32, func(i int) (*pb.ModelInferRequest, map[string]tensor) {
				v := fp32(float32(i))
				r, want := request("optional", input("INPUT0", "FP32", shape(1, 1), v)), map[string]tensor{"OUTPUT0": {"FP32", shape(1, 1), v}}
				if i%2 == 0 {
					input("INPUT1", "INT32", shape(1, 1), i32(int32(i)))(r)
					want["OUTPUT1"] = tensor{"INT32", shape(1, 1), i32(int32(i))}
				}
				return r, want
			})
		}},
	}
}

// custom is the metadata that is not gRPC's own.
func custom(md metadata.MD) metadata.MD {
	out := metadata.MD{}
	for k, v := range md {
		if k != "content-type" && !strings.HasPrefix(k, "grpc-") {
			out[k] = v
		}
	}
	return out
}

// inRegion is a request whose input is in a shared memory region.
func inRegion(region string) *pb.ModelInferRequest {
	r := request("identity", declare("INPUT0", "FP32", shape(1, 2)), id("r"))
	r.Inputs[0].Parameters = map[string]*pb.InferParameter{"shared_memory_region": inferParameter(region), "shared_memory_byte_size": inferParameter(8)}
	return r
}

// eachItsOwn sends n requests at once and wants for each what belongs to it, id included.
func (e *Env) eachItsOwn(n int, make1 func(i int) (*pb.ModelInferRequest, map[string]tensor)) {
	e.Helper()
	ctx := e.ctx()
	answers, errs := make([]*pb.ModelInferResponse, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		r, _ := make1(i)
		all.Go(func() { answers[i], errs[i] = e.Client.Stub.ModelInfer(ctx, r) })
	}
	all.Wait()
	for i := range n {
		r, want := make1(i)
		require.NoError(e, errs[i], "caller %d", i)
		require.Equal(e, r.Id, answers[i].Id)
		e.wantOutputs(answers[i], want)
	}
}

// exchange opens a stream, sends requests, closes it and returns every message until its end.
func (e *Env) exchange(ctx context.Context, requests []*pb.ModelInferRequest) ([]*pb.ModelStreamInferResponse, error) {
	s, err := e.Client.Stub.ModelStreamInfer(ctx)
	if err != nil {
		return nil, err
	}
	return drive(s, requests)
}

func drive(s grpc.BidiStreamingClient[pb.ModelInferRequest, pb.ModelStreamInferResponse], requests []*pb.ModelInferRequest) (messages []*pb.ModelStreamInferResponse, err error) {
	for _, r := range requests {
		if err := s.Send(r); errors.Is(err, io.EOF) {
			break // the stream has ended already; Recv says how
		} else if err != nil {
			return nil, err
		}
	}
	if err := s.CloseSend(); err != nil {
		return nil, err
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return messages, nil
		}
		if err != nil {
			return messages, err
		}
		messages = append(messages, m)
	}
}
