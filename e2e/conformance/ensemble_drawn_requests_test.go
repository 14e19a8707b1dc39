// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// answerWithin is how long an answer may take. Triton 2.51 never answers some requests of ensembles.
const answerWithin = 5 * time.Second

// noAnswer begins what stands for the answer of a server that has none.
const noAnswer = "no answer: "

// drawRequest is a request of an ensemble, most of the time one that it can answer.
func drawRequest(random *rand.Rand, e drawn) *pb.ModelInferRequest {
	chance := func(n int) bool { return random.IntN(n) == 0 }
	r := &pb.ModelInferRequest{ModelName: e.name}
	if chance(2) {
		r.Id = fmt.Sprint("id ", random.IntN(100))
	}
	rows, columns := 1+random.IntN(3), random.IntN(5)
	if chance(20) {
		rows = 9
	}
	if chance(4) {
		columns = 4
	}
	shape := []int64{int64(rows), int64(columns)}
	if !e.batched {
		rows, shape = 1, shape[1:]
	}
	for _, name := range e.inputs {
		if chance(25) {
			continue
		}
		in := &pb.ModelInferRequest_InferInputTensor{Name: name, Datatype: e.wire(), Shape: slices.Clone(shape)}
		if chance(25) {
			in.Shape = []int64{int64(rows * columns)}
		}
		if chance(30) {
			in.Datatype = "INT32"
		}
		if chance(30) {
			in.Shape[0]++
		}
		var data []byte
		for range rows * columns {
			data = element(data, e.datatype, random.IntN(9))
		}
		r.Inputs, r.RawInputContents = append(r.Inputs, in), append(r.RawInputContents, data)
	}
	if chance(2) {
		for _, name := range e.outputs {
			if chance(2) {
				r.Outputs = append(r.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: name})
			}
		}
		if chance(20) {
			r.Outputs = append(r.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: "none"})
		}
		if len(r.Outputs) > 0 && chance(10) {
			r.Outputs = append(r.Outputs, r.Outputs[0])
		}
	}
	if chance(5) {
		r.Parameters = map[string]*pb.InferParameter{
			"priority": {ParameterChoice: &pb.InferParameter_Uint64Param{Uint64Param: 1}}, "timeout": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 60_000_000}},
			"other": {ParameterChoice: &pb.InferParameter_StringParam{StringParam: "x"}},
		}
	}
	return r
}

// element appends one of a datatype to the bytes of a tensor.
func element(data []byte, datatype string, n int) []byte {
	switch datatype {
	case "STRING":
		text := strings.Repeat("é", n%3)
		return append(binary.LittleEndian.AppendUint32(data, uint32(len(text))), text...) //nolint:gosec // small
	case "FP32":
		return binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(n-1)))
	case "FP64":
		return binary.LittleEndian.AppendUint64(data, math.Float64bits(float64(n)-.1))
	case "INT64":
		return binary.LittleEndian.AppendUint64(data, uint64(n-1)) //nolint:gosec // its bits are wanted
	case "INT16":
		return binary.LittleEndian.AppendUint16(data, uint16(n-1)) //nolint:gosec // likewise
	case "UINT8":
		return append(data, byte(n))
	}
	return append(data, byte(n%2)) // BOOL
}

// elements are those of a tensor, as JSON has them.
func elements(datatype string, raw []byte) any {
	switch datatype {
	case "BYTES":
		all := []string{}
		for len(raw) >= 4 {
			n := binary.LittleEndian.Uint32(raw)
			all, raw = append(all, string(raw[4:4+n])), raw[4+n:]
		}
		return all
	case "FP32":
		return numbers[float32](raw)
	case "FP64":
		return numbers[float64](raw)
	case "INT64":
		return numbers[int64](raw)
	case "INT16":
		return numbers[int16](raw)
	case "BOOL":
		all := []bool{}
		for _, one := range raw {
			all = append(all, one != 0)
		}
		return all
	}
	all := []int{} // not bytes, which JSON would have as text
	for _, one := range raw {
		all = append(all, int(one))
	}
	return all
}

func numbers[T any](raw []byte) []T {
	all := make([]T, len(raw)/binary.Size(*new(T)))
	if _, err := binary.Decode(raw, binary.LittleEndian, all); err != nil {
		panic(err) // its length is theirs
	}
	return all
}

// overGRPC is what a server answers, as text in which the outputs are in the order of their names.
func overGRPC(ctx context.Context, c *triton.Client, r *pb.ModelInferRequest) string {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	response, err := c.Stub.ModelInfer(ctx, r)
	if err != nil {
		return fmt.Sprint(status.Code(err), ": ", status.Convert(err).Message())
	}
	var lines []string
	for i, o := range response.Outputs {
		lines = append(lines, fmt.Sprintf("%s %s %v %x", o.Name, o.Datatype, o.Shape, response.RawOutputContents[i]))
	}
	slices.Sort(lines)
	response.Outputs, response.RawOutputContents = nil, nil
	text, _ := prototext.MarshalOptions{Multiline: false}.Marshal(response)
	return strings.ReplaceAll(string(text), "  ", " ") + "\n" + strings.Join(lines, "\n")
}

// overHTTP is what a server answers to the same request as JSON, or with binary tensors, likewise. The bytes are of the datatype, whatever the request says.
func overHTTP(ctx context.Context, t *testing.T, address, datatype string, r *pb.ModelInferRequest, inBinary bool) string {
	t.Helper()
	document := map[string]any{}
	if r.Id != "" {
		document["id"] = r.Id
	}
	var inputs, outputs []any
	var tail []byte
	for i, in := range r.Inputs {
		one := map[string]any{"name": in.Name, "datatype": in.Datatype, "shape": in.Shape}
		raw := r.RawInputContents[i]
		switch {
		case inBinary:
			one["parameters"] = map[string]any{"binary_data_size": len(raw)}
			tail = append(tail, raw...)
		default:
			one["data"] = elements(datatype, raw)
		}
		inputs = append(inputs, one)
	}
	for _, o := range r.Outputs {
		outputs = append(outputs, map[string]any{"name": o.Name, "parameters": map[string]any{"binary_data": inBinary}})
	}
	document["inputs"] = inputs
	if inputs == nil {
		document["inputs"] = []any{}
	}
	if outputs != nil {
		document["outputs"] = outputs
	} else if inBinary {
		document["parameters"] = map[string]any{"binary_data_output": true}
	}
	body, err := json.Marshal(document)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/"+r.ModelName+"/infer", bytes.NewReader(append(body, tail...)))
	require.NoError(t, err)
	if inBinary {
		request.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(body)))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return noAnswer + err.Error()
	}
	defer response.Body.Close() //nolint:errcheck // read
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	head := answer
	if n, err := strconv.Atoi(response.Header.Get("Inference-Header-Content-Length")); err == nil {
		head, answer = answer[:n], answer[n:]
	} else {
		answer = nil
	}
	var fields map[string]any
	if err := json.Unmarshal(head, &fields); err != nil {
		return fmt.Sprintf("%d %s %s", response.StatusCode, response.Header.Get("Content-Type"), head)
	}
	var lines []string
	all, _ := fields["outputs"].([]any)
	for _, o := range all {
		one := o.(map[string]any)
		if p, ok := one["parameters"].(map[string]any); ok {
			n := int(p["binary_data_size"].(float64))
			one["binary"], answer = fmt.Sprintf("%x", answer[:n]), answer[n:]
		}
		line, _ := json.Marshal(one)
		lines = append(lines, string(line))
	}
	slices.Sort(lines)
	delete(fields, "outputs")
	rest, _ := json.Marshal(fields)
	return fmt.Sprintf("%d %s %s\n%s", response.StatusCode, response.Header.Get("Content-Type"), rest, strings.Join(lines, "\n"))
}
