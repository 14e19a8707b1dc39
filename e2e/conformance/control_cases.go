// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// seqStep is one request of a sequence to a model that answers with its controls.
func seqStep(model string, id any, value int32, flags ...string) *pb.ModelInferRequest {
	r := request(model, input("INPUT", "INT32", shape(1, 1), i32(value)), parameter("sequence_id", id))
	for _, f := range flags {
		parameter(f, true)(r)
	}
	return r
}

// controlCases see what the direct and the oldest strategy of the sequence batcher give a model, and that both have two slots.
func controlCases() []Case {
	const start, end = "sequence_start", "sequence_end"
	var cases []Case
	for _, model := range []string{"controls_direct", "controls_oldest"} {
		// want sends a step and compares INPUT, START, END (-1 or 2), READY and CORRID as the model saw them.
		want := func(e *Env, r *pb.ModelInferRequest, seen ...int64) {
			e.Helper()
			var data []byte
			for _, v := range seen {
				data = binary.LittleEndian.AppendUint64(data, uint64(v))
			}
			e.wantOutputs(e.infer(r), map[string]tensor{"OUTPUT": {"INT64", shape(1, 5), data}})
		}
		cases = append(cases,
			Case{"sequence/" + model + ": controls", func(e *Env) {
				want(e, seqStep(model, 7, 1, start), 1, 1, -1, 1, 7)
				want(e, seqStep(model, 7, 2), 2, 0, -1, 1, 7)
				want(e, seqStep(model, 9, 3, start), 3, 1, -1, 1, 9)
				want(e, seqStep(model, 7, 4, start), 4, 1, -1, 1, 7) // starts anew in its slot
				want(e, seqStep(model, 7, 5, end), 5, 0, 2, 1, 7)
				want(e, seqStep(model, 9, 6, end), 6, 0, 2, 1, 9)
				want(e, seqStep(model, 11, 7, start, end), 7, 1, 2, 1, 11)
			}},
			Case{"sequence/" + model + ": after its end it has to start", func(e *Env) {
				want(e, seqStep(model, 12, 1, start, end), 1, 1, 2, 1, 12)
				_, err := e.Client.Stub.ModelInfer(e.ctx(), seqStep(model, 12, 1))
				e.refused(err, codes.InvalidArgument, "inference request for sequence 12 to model '"+model+"' must specify the START flag on the first request of the sequence")
			}},
			Case{"sequence/" + model + ": without a correlation id", func(e *Env) {
				for _, id := range []any{0, ""} {
					_, err := e.Client.Stub.ModelInfer(e.ctx(), seqStep(model, id, 1, start))
					e.refused(err, codes.InvalidArgument, "inference request to model '"+model+"' must specify a non-zero or non-empty correlation ID")
				}
			}},
			Case{"sequence/" + model + ": more sequences than slots", func(e *Env) {
				want(e, seqStep(model, 21, 1, start), 1, 1, -1, 1, 21)
				want(e, seqStep(model, 22, 1, start), 1, 1, -1, 1, 22)
				ctx := e.ctx()
				answers := make(chan *pb.ModelInferResponse, 1)
				third := func(r *pb.ModelInferRequest) {
					resp, err := e.Client.Stub.ModelInfer(ctx, r)
					if err != nil {
						e.Errorf("the third sequence: %v", err)
					}
					answers <- resp
				}
				go third(seqStep(model, 23, 1, start, end))
				select {
				case <-answers:
					e.Fatal("the third sequence has not waited for a slot")
				case <-time.After(100 * time.Millisecond):
				}
				want(e, seqStep(model, 22, 2, end), 2, 0, 2, 1, 22)
				require.NotNil(e, <-answers)
				want(e, seqStep(model, 21, 2, end), 2, 0, 2, 1, 21)
			}},
			Case{"sequence/" + model + ": an idle sequence loses its slot", func(e *Env) {
				want(e, seqStep(model, 31, 1, start), 1, 1, -1, 1, 31)
				want(e, seqStep(model, 32, 1, start), 1, 1, -1, 1, 32)
				want(e, seqStep(model, 33, 1, start, end), 1, 1, 2, 1, 33) // waits for the idle time of one of them
				e.until(func() bool {
					_, err := e.Client.Stub.ModelInfer(e.ctx(), seqStep(model, 34, 1, start, end))
					return err == nil
				}, 10*time.Millisecond)
				time.Sleep(2200 * time.Millisecond) // both are idle by now
				_, err := e.Client.Stub.ModelInfer(e.ctx(), seqStep(model, 31, 1))
				e.refused(err, codes.InvalidArgument, "inference request for sequence 31 to model '"+model+"' must specify the START flag on the first request of the sequence")
			}},
		)
	}
	return append(cases, Case{"sequence/a correlation id that is too long", func(e *Env) {
		long := strings.Repeat("x", 129)
		_, err := e.Client.Stub.ModelInfer(e.ctx(), seqStep("controls_oldest", long, 1, start, end))
		e.refused(err, codes.Unimplemented, "string correlation ID cannot be longer than 128 characters")
		e.wantHTTP(e.call("POST", inferPath("controls_oldest"), `{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,1],"data":[1]}],"parameters":{"sequence_id":"`+long+`"}}`), 501, jsonType,
			errorJSON("string correlation ID cannot be longer than 128 characters"))
	}})
}
