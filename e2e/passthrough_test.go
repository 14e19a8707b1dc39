// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/e2e/conformance"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

func int32s(values ...int32) []byte {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
	}
	return raw
}

func rawInput(name, datatype string, shape ...int64) *tritonpb.ModelInferRequest_InferInputTensor {
	return &tritonpb.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: shape}
}

func flag(v bool) *tritonpb.InferParameter {
	return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: v}}
}

// conformanceModels writes some models of the conformance suite.
func conformanceModels(t *testing.T, names ...string) string {
	t.Helper()
	all, dir := t.TempDir(), t.TempDir()
	require.NoError(t, conformance.WriteModels(all))
	for _, name := range names {
		require.NoError(t, os.Rename(filepath.Join(all, name), filepath.Join(dir, name)))
	}
	return dir
}

// What must not be batched is answered as Triton answers it, by two servers as if they were one, and tritonctl says why it is not batched.
func TestPassThrough(t *testing.T) {
	t.Parallel()
	c := serve(t, rig.ConchOptions{Repository: conformanceModels(t, "decoupled", "sequence", "unbatched", "identity"), GPUs: 2})
	triton := triton(t, c)
	for _, m := range []struct {
		name, reason string
		call         func(ctx context.Context, triton tritonpb.GRPCInferenceServiceClient, caller int) (requests int, err error)
	}{
		{"decoupled", "decoupled: a request may have any number of responses", decoupledStream},
		{"sequence", "sequence batching: requests of a sequence keep to one instance and their order", sequence},
		{"unbatched", "max_batch_size is 0: its tensors have no batch dimension", unbatched},
	} {
		t.Run(m.name, func(t *testing.T) {
			const callers = 6
			errs, requests := make([]error, callers), make([]int, callers)
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() { requests[i], errs[i] = m.call(t.Context(), triton, i) })
			}
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
			sum := 0
			for _, n := range requests {
				sum += n
			}
			require.EqualValues(t, sum, scrape(t, c).sum("conch_passed_through_requests_total", "model="+m.name))
			out, code := tritonctl(t, c, "model", "get", m.name)
			require.Zero(t, code, out)
			require.Regexp(t, `(?m)^passed through +`+regexp.QuoteMeta(m.reason)+`$`, out)
		})
	}
	out, code := tritonctl(t, c, "model", "get", "identity")
	require.Zero(t, code, out)
	require.NotContains(t, out, "passed through", "what may be batched")
	require.Regexp(t, `(?m)^discipline +adaptive$`, out)
}

// decoupledStream wants three answers to one request and one to the next, each request's in order and followed by the mark of its end.
// Answers to several requests of a decoupled model may come in turns, from Triton too.
func decoupledStream(ctx context.Context, triton tritonpb.GRPCInferenceServiceClient, caller int) (int, error) {
	stream, err := triton.ModelStreamInfer(ctx)
	if err != nil {
		return 0, err
	}
	base := int32(10 * caller)
	want := map[string][]string{}
	for i, values := range [][]int32{{base, base + 1, base + 2}, {base + 7}} {
		id := fmt.Sprintf("%d-%d", caller, i)
		n := int64(len(values))
		err := stream.Send(&tritonpb.ModelInferRequest{
			ModelName: "decoupled", Id: id, Parameters: map[string]*tritonpb.InferParameter{"triton_enable_empty_final_response": flag(true)},
			Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("IN", "INT32", n), rawInput("DELAY", "UINT32", n)},
			RawInputContents: [][]byte{int32s(values...), make([]byte, 4*n)},
		})
		if err != nil {
			return 0, err
		}
		for _, v := range values {
			want[id] = append(want[id], strconv.Itoa(int(v)))
		}
		want[id] = append(want[id], "end")
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	have := map[string][]string{}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if m.ErrorMessage != "" {
			return 0, errors.New(m.ErrorMessage)
		}
		r := m.InferResponse
		if r.Parameters["triton_final_response"].GetBoolParam() {
			have[r.Id] = append(have[r.Id], "end")
			continue
		}
		have[r.Id] = append(have[r.Id], strconv.Itoa(int(int32(binary.LittleEndian.Uint32(r.RawOutputContents[0])))))
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		return 0, fmt.Errorf("caller %d: have %q, want %q", caller, have, want)
	}
	return 2, nil
}

// sequence wants running sums: its state is on one of the servers.
func sequence(ctx context.Context, triton tritonpb.GRPCInferenceServiceClient, caller int) (int, error) {
	const steps = 8
	sum := int32(0)
	for step := range steps {
		value := int32(100*caller + step)
		sum += value
		r, err := triton.ModelInfer(ctx, &tritonpb.ModelInferRequest{
			ModelName: "sequence", Parameters: map[string]*tritonpb.InferParameter{
				"sequence_id":    {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: int64(caller + 1)}},
				"sequence_start": flag(step == 0), "sequence_end": flag(step == steps-1),
			},
			Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT", "INT32", 1, 1)},
			RawInputContents: [][]byte{int32s(value)},
		})
		if err != nil {
			return 0, fmt.Errorf("caller %d, step %d: %w", caller, step, err)
		}
		if have := int32(binary.LittleEndian.Uint32(r.RawOutputContents[0])); have != sum {
			return 0, fmt.Errorf("caller %d, step %d: the sum is %d, want %d", caller, step, have, sum)
		}
	}
	return steps, nil
}

// unbatched wants its own rows back, more of them the later the caller.
func unbatched(ctx context.Context, triton tritonpb.GRPCInferenceServiceClient, caller int) (int, error) {
	values := make([]int32, 2*(caller+1))
	for i := range values {
		values[i] = int32(1000*caller + i)
	}
	r, err := triton.ModelInfer(ctx, &tritonpb.ModelInferRequest{
		ModelName: "unbatched", Id: strconv.Itoa(caller),
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "INT32", int64(caller+1), 2)},
		RawInputContents: [][]byte{int32s(values...)},
	})
	switch {
	case err != nil:
		return 0, err
	case r.Id != strconv.Itoa(caller) || fmt.Sprint(r.Outputs[0].Shape) != fmt.Sprintf("[%d 2]", caller+1):
		return 0, fmt.Errorf("caller %d: have %v", caller, r)
	case string(r.RawOutputContents[0]) != string(int32s(values...)):
		return 0, fmt.Errorf("caller %d: have %v, want %v", caller, r.RawOutputContents[0], values)
	}
	return 1, nil
}
