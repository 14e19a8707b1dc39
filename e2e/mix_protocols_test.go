// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// send asks conch by the request's protocol.
func (q *mixed) send(ctx context.Context, client tritonpb.GRPCInferenceServiceClient, address string) (map[string][]byte, error) {
	if q.patience > 0 {
		var end context.CancelFunc
		if q.cancel {
			ctx, end = context.WithCancel(ctx)
			defer time.AfterFunc(q.patience, end).Stop()
		} else {
			ctx, end = context.WithTimeout(ctx, q.patience)
		}
		defer end()
	}
	if q.protocol == byJSON || q.protocol == byBinary {
		return q.overHTTP(ctx, address)
	}
	request := q.request
	if q.protocol == byTypedGRPC && q.bad == "" {
		request = typed(request)
	}
	r, err := client.ModelInfer(ctx, request)
	if err != nil {
		return nil, err
	}
	if r.Id != request.Id || r.ModelName != request.ModelName || len(r.Outputs) != len(r.RawOutputContents) {
		return nil, fmt.Errorf("an answer of model %q with id %q and %d of %d outputs", r.ModelName, r.Id, len(r.RawOutputContents), len(r.Outputs))
	}
	out := map[string][]byte{}
	for i, o := range r.Outputs {
		if q.shape != nil && fmt.Sprint(o.Shape) != fmt.Sprint(q.shape) {
			return nil, fmt.Errorf("output %s has shape %v", o.Name, o.Shape)
		}
		out[o.Name] = r.RawOutputContents[i]
	}
	return out, nil
}

// typed is the same request with typed contents in place of raw ones.
func typed(r *tritonpb.ModelInferRequest) *tritonpb.ModelInferRequest {
	t := &tritonpb.ModelInferRequest{ModelName: r.ModelName, Id: r.Id, Parameters: r.Parameters, Outputs: r.Outputs}
	le := binary.LittleEndian
	for i, in := range r.Inputs {
		raw := r.RawInputContents[i]
		c := &tritonpb.InferTensorContents{}
		switch in.Datatype {
		case "FP32":
			c.Fp32Contents = floats(raw)
		case "INT32":
			for k := 0; k < len(raw); k += 4 {
				c.IntContents = append(c.IntContents, int32(le.Uint32(raw[k:])))
			}
		case "INT64":
			for k := 0; k < len(raw); k += 8 {
				c.Int64Contents = append(c.Int64Contents, int64(le.Uint64(raw[k:])))
			}
		case "BYTES":
			c.BytesContents = words(raw)
		}
		t.Inputs = append(t.Inputs, &tritonpb.ModelInferRequest_InferInputTensor{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape, Contents: c})
	}
	return t
}

func words(raw []byte) (all [][]byte) {
	for len(raw) > 0 {
		n := binary.LittleEndian.Uint32(raw)
		all = append(all, raw[4:4+n])
		raw = raw[4+n:]
	}
	return all
}

func (q *mixed) overHTTP(ctx context.Context, address string) (map[string][]byte, error) {
	var tail []byte
	inputs := make([]map[string]any, 0, 2)
	for i, in := range q.request.Inputs {
		raw := q.request.RawInputContents[i]
		input := map[string]any{"name": in.Name, "datatype": in.Datatype, "shape": in.Shape}
		if q.protocol == byBinary {
			input["parameters"] = map[string]any{"binary_data_size": len(raw)}
			tail = append(tail, raw...)
		} else {
			input["data"] = asJSON(in.Datatype, raw)
		}
		inputs = append(inputs, input)
	}
	parameters := map[string]any{"binary_data_output": q.protocol == byBinary}
	for name, p := range q.request.Parameters {
		if s, ok := p.ParameterChoice.(*tritonpb.InferParameter_StringParam); ok {
			parameters[name] = s.StringParam
		} else {
			parameters[name] = p.GetInt64Param()
		}
	}
	message := map[string]any{"inputs": inputs, "parameters": parameters}
	if q.request.Id != "" {
		message["id"] = q.request.Id
	}
	outputs := make([]map[string]any, 0, 2)
	for _, o := range q.request.Outputs {
		outputs = append(outputs, map[string]any{"name": o.Name, "parameters": map[string]any{"binary_data": q.protocol == byBinary}})
	}
	if len(outputs) > 0 {
		message["outputs"] = outputs
	}
	head, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/"+q.request.ModelName+"/infer", bytes.NewReader(append(head, tail...)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", response.Status, body)
	}
	return q.parse(body, response.Header.Get("Inference-Header-Content-Length"))
}

func asJSON(datatype string, raw []byte) any {
	switch datatype {
	case "FP32":
		return floats(raw)
	case "BYTES":
		texts := []string{}
		for _, w := range words(raw) {
			texts = append(texts, string(w))
		}
		return texts
	}
	numbers := []int32{}
	for i := 0; i < len(raw); i += 4 {
		numbers = append(numbers, int32(binary.LittleEndian.Uint32(raw[i:])))
	}
	return numbers
}

func (q *mixed) parse(body []byte, header string) (map[string][]byte, error) {
	text, tail := body, []byte(nil)
	if n, err := strconv.Atoi(header); err == nil && n <= len(body) {
		text, tail = body[:n], body[n:]
	}
	var parsed struct {
		ID        string
		ModelName string `json:"model_name"`
		Outputs   []struct {
			Name, Datatype string
			Shape          []int64
			Parameters     struct {
				Size *int `json:"binary_data_size"`
			}
			Data json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &parsed); err != nil {
		return nil, err
	}
	if parsed.ID != q.request.Id || parsed.ModelName != q.request.ModelName {
		return nil, fmt.Errorf("an answer of model %q with id %q", parsed.ModelName, parsed.ID)
	}
	out := map[string][]byte{}
	for _, o := range parsed.Outputs {
		if q.shape != nil && fmt.Sprint(o.Shape) != fmt.Sprint(q.shape) {
			return nil, fmt.Errorf("output %s has shape %v", o.Name, o.Shape)
		}
		if size := o.Parameters.Size; size != nil && *size <= len(tail) {
			out[o.Name], tail = tail[:*size], tail[*size:]
			continue
		}
		raw, err := fromJSON(o.Datatype, o.Data)
		if err != nil {
			return nil, err
		}
		out[o.Name] = raw
	}
	if len(tail) > 0 {
		return nil, fmt.Errorf("%d bytes too many", len(tail))
	}
	return out, nil
}

func fromJSON(datatype string, data json.RawMessage) ([]byte, error) {
	var raw []byte
	switch datatype {
	case "FP32":
		var values []float32
		err := json.Unmarshal(data, &values)
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		return raw, err
	case "INT32":
		var values []int32
		err := json.Unmarshal(data, &values)
		return int32s(values...), err
	}
	var values []string
	err := json.Unmarshal(data, &values)
	for _, v := range values {
		raw = append(binary.LittleEndian.AppendUint32(raw, uint32(len(v))), v...)
	}
	return raw, err
}
