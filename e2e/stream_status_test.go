// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// What a real server does with the stream header triton_grpc_error, and with a gzip body that ends in the middle, conch in front of one does too.
func TestErrorsOfStreamsAndOfBrokenBodies(t *testing.T) {
	t.Parallel()
	dir := conformanceModels(t, "error", "identity")
	server, err := rig.StartServer(t.Context(), rig.ServerOptions{
		Server: setting(t, "CONCH_TRITONSERVER"), Repository: dir, Flags: []string{"--load-model=error", "--load-model=identity"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	conch := serve(t, rig.ConchOptions{Repository: dir, GPUs: 1})
	for name, at := range map[string]struct{ grpc, http string }{"tritonserver": {server.GRPC, server.HTTP}, "conch": {conch.GRPC, conch.HTTP}} {
		t.Run(name, func(t *testing.T) {
			conn, err := grpc.NewClient(at.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			stub := tritonpb.NewGRPCInferenceServiceClient(conn)
			// A negative input is an error of the model's.
			ask := func(values ...byte) (messages []*tritonpb.ModelStreamInferResponse, err error) {
				s, err := stub.ModelStreamInfer(metadata.AppendToOutgoingContext(t.Context(), "triton_grpc_error", "true"))
				require.NoError(t, err)
				for _, sign := range values {
					require.NoError(t, s.Send(&tritonpb.ModelInferRequest{
						ModelName: "error", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "FP32", 1, 1)},
						RawInputContents: [][]byte{{0, 0, 0x80, sign}}, // 1 or -1
					}))
				}
				require.NoError(t, s.CloseSend())
				for {
					m, err := s.Recv()
					if err != nil {
						return messages, err
					}
					messages = append(messages, m)
				}
			}
			const one, minusOne = 0x3f, 0xbf
			messages, err := ask(one)
			require.ErrorIs(t, err, io.EOF)
			require.Len(t, messages, 1)
			messages, err = ask(minusOne)
			require.Empty(t, messages)
			require.False(t, errors.Is(err, io.EOF))
			require.Equal(t, codes.Internal, status.Code(err), "%v", err)
			require.Contains(t, status.Convert(err).Message(), "negative input")

			var body bytes.Buffer
			w := gzip.NewWriter(&body)
			_, err = w.Write([]byte(`{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2.5]}]}`))
			require.NoError(t, err)
			require.NoError(t, w.Close())
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at.http+"/v2/models/identity/infer", bytes.NewReader(body.Bytes()[:body.Len()/2]))
			require.NoError(t, err)
			request.Header.Set("Content-Encoding", "gzip")
			r, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			defer r.Body.Close()
			require.Contains(t, []int{http.StatusBadRequest, http.StatusInternalServerError}, r.StatusCode) // Triton parses what it could inflate, conch refuses the body
			require.Equal(t, "application/json", r.Header.Get("Content-Type"))
			var answer struct{ Error string }
			require.NoError(t, json.NewDecoder(r.Body).Decode(&answer))
			require.NotEmpty(t, answer.Error)
		})
	}
}
