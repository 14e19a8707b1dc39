// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// sends answers by its ResponseSender; what, its input says.
const sends = `import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            way = int(pb.get_input_tensor_by_name(request, "INPUT0").as_numpy().flatten()[0])

            def answer(x):
                return pb.InferenceResponse([pb.Tensor("OUTPUT0", np.array([[x]], np.float32))])

            if way == 1:
                sender.send(answer(1))
            elif way == 2:
                sender.send(pb.InferenceResponse(error=pb.TritonError("its error")))
            elif way == 3:
                sender.send(answer(1))
                sender.send(answer(2))
            elif way == 4:
                sender.send(answer(1))
                sender.send(pb.InferenceResponse(error=pb.TritonError("its error")))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
`

const sendsConfig = `name: "sends"
backend: "python"
max_batch_size: 4
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
instance_group [{ kind: KIND_CPU }]
`

// A python model that is not decoupled may answer by its ResponseSender and mark the end apart from the answer. How its callers see that is what a
// real server gives, and through Conch what docs/compatibility.md says of it.
func TestAModelMarksTheEndApartFromItsAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "sends/1/model.py", sends)
	write(t, dir, "sends/config.pbtxt", sendsConfig)
	server, err := rig.StartServer(t.Context(), rig.ServerOptions{Server: setting(t, "CONCH_TRITONSERVER"), Repository: dir, Flags: []string{"--load-model=sends"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	conch := serve(t, rig.ConchOptions{Repository: dir, GPUs: 1})

	const (
		answer   = `200 {"model_name":"sends","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,1],"data":[1.0]}]}`
		twice    = "expected a single response, got 2"
		lostText = "the model answered with an error whose text the server lost: the model should send it together with the final flag, and not the one after the other"
	)
	for name, at := range map[string]struct {
		grpc, http string
		want       map[string][3]string
	}{
		"tritonserver": {server.GRPC, server.HTTP, map[string][3]string{
			"an answer":   {"sends 1", answer, "sends 1 final=false"},
			"an error":    {"", `500 {"error":"its error"}`, "its error final=false"},
			"two answers": {twice, "500" + strings.TrimPrefix(answer, "200") + `{"error":"` + twice + `"}`, "sends 1 final=false"},
		}},
		"conch": {conch.GRPC, conch.HTTP, map[string][3]string{
			"an answer":   {"sends 1", answer, "sends 1 final=true"},
			"an error":    {"", `500 {"error":"` + lostText + `"}`, lostText + " final=true"},
			"two answers": {twice, `500 {"error":"` + twice + `"}`, twice + " final=true"},
		}},
	} {
		conn, err := grpc.NewClient(at.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		client := tritonpb.NewGRPCInferenceServiceClient(conn)
		for i, way := range []string{"an answer", "an error", "two answers"} {
			request := &tritonpb.ModelInferRequest{
				ModelName: "sends", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "FP32", 1, 1)},
				RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(i+1)))},
			}
			body := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[%d]}]}`, i+1)
			got := [3]string{inferUnary(t, client, request), postHTTP(t, "http://"+at.http+"/v2/models/sends/infer", body), inferStream(t, client, request)}
			if name == "conch" && way == "an error" && got[1] == `500 {"error":"its error"}` {
				got[1] = `500 {"error":"` + lostText + `"}` // it went on to the server's HTTP port, which keeps the text
			}
			require.Equal(t, at.want[way], got, "%s: %s", name, way)
		}
	}
	require.EqualValues(t, 6, scrape(t, conch).sum("conch_requests_total", "model=sends", "result=failed"))
}

// An error that a decoupled model sends after an answer comes within the events of an answer of status 200, and is a failure nevertheless.
func TestAnErrorAmongEventsIsAFailure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "sends/1/model.py", sends)
	write(t, dir, "sends/config.pbtxt", strings.Replace(sendsConfig, "max_batch_size: 4", "max_batch_size: 0", 1)+"model_transaction_policy { decoupled: true }\n")
	conch := serve(t, rig.ConchOptions{Repository: dir, GPUs: 1})
	generate := func(way int) string {
		return postHTTP(t, "http://"+conch.HTTP+"/v2/models/sends/generate_stream", fmt.Sprintf(`{"INPUT0":%d}`, way))
	}
	const event = `data: {"OUTPUT0":%d.0,"model_name":"sends","model_version":"1"}` + "\n\n"
	first, second := fmt.Sprintf(event, 1), fmt.Sprintf(event, 2)
	require.Equal(t, "200 "+first+second, generate(3))
	require.Equal(t, "200 "+first+`data: {"error":"its error"}`+"\n\n", generate(4))
	require.Eventually(t, func() bool {
		m := scrape(t, conch)
		return m.sum("conch_requests_total", "model=sends", "result=ok") == 1 && m.sum("conch_requests_total", "model=sends", "result=failed") == 1
	}, time.Minute, 20*time.Millisecond)
}

// inferUnary is what ModelInfer gives: the error, or the answer.
func inferUnary(t *testing.T, client tritonpb.GRPCInferenceServiceClient, r *tritonpb.ModelInferRequest) string {
	answer, err := client.ModelInfer(t.Context(), r)
	if err != nil {
		return status.Convert(err).Message()
	}
	return inWords(answer)
}

// postHTTP is what an HTTP front gives: status and body.
func postHTTP(t *testing.T, url, body string) string {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Accept-Encoding", "identity") // a server compresses the first answer, but not the error behind it
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return fmt.Sprint(answer.StatusCode, " ", string(text))
}

// inferStream is what a stream gives for one request: errors and answers, each with its final mark.
func inferStream(t *testing.T, client tritonpb.GRPCInferenceServiceClient, r *tritonpb.ModelInferRequest) string {
	s, err := client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(r))
	require.NoError(t, s.CloseSend())
	var all []string
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return strings.Join(all, "; ")
		}
		require.NoError(t, err)
		message := m.ErrorMessage
		if message == "" {
			message = inWords(m.InferResponse)
		}
		all = append(all, fmt.Sprintf("%s final=%v", message, m.InferResponse.Parameters["triton_final_response"].GetBoolParam()))
	}
}

// inWords is an answer's model and value; empty of an empty message.
func inWords(r *tritonpb.ModelInferResponse) string {
	if proto.Size(r) == 0 {
		return ""
	}
	if len(r.RawOutputContents) != 1 {
		return fmt.Sprint(r)
	}
	return fmt.Sprint(r.ModelName, " ", math.Float32frombits(binary.LittleEndian.Uint32(r.RawOutputContents[0])))
}
