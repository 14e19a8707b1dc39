// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	thin "github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

const shortened = "Invalid offset + byte size for shared memory region: 'lost': its object was made shorter after it was registered"

// sharedObject makes a shared memory object of a page and registers it as a region.
func sharedObject(t *testing.T, name string, client tritonpb.GRPCInferenceServiceClient) (path string) {
	t.Helper()
	key := fmt.Sprintf("/conch_e2e_%d_%s", os.Getpid(), name)
	path = filepath.Join("/dev/shm", key)
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	t.Cleanup(func() { require.NoError(t, os.Remove(path)) })
	_, err := client.SystemSharedMemoryRegister(t.Context(), &tritonpb.SystemSharedMemoryRegisterRequest{Name: "lost", Key: key, ByteSize: 4096})
	require.NoError(t, err)
	return path
}

func fromMemory(input, output bool) *tritonpb.ModelInferRequest {
	place := map[string]*tritonpb.InferParameter{
		"shared_memory_region":    {ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: "lost"}},
		"shared_memory_byte_size": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 8}},
	}
	r := echoed("")
	if input {
		r.RawInputContents, r.Inputs[0].Parameters = nil, place
	}
	if output {
		r.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0", Parameters: place}}
	}
	return r
}

// A server crashes on memory that was taken away after it was registered. Conch refuses requests that use it, over both protocols and on
// streams, and passes them on again once it is back.
func TestMemoryThatIsTakenAway(t *testing.T) {
	t.Parallel()
	c := serve(t, rig.ConchOptions{Repository: conformanceModels(t, "identity"), GPUs: 2})
	client := triton(t, c)
	path := sharedObject(t, "conch", client)
	infer := func(r *tritonpb.ModelInferRequest) error {
		_, err := client.ModelInfer(t.Context(), r)
		return err
	}
	require.NoError(t, infer(fromMemory(true, true)))
	died := func() int { return strings.Count(c.LogTail(), "server died") }
	before := died() // on a busy machine a server may have died of its start
	require.NoError(t, os.Truncate(path, 0))
	for _, r := range []*tritonpb.ModelInferRequest{fromMemory(true, false), fromMemory(false, true), fromMemory(true, true)} {
		err := infer(r)
		require.Equal(t, codes.InvalidArgument.String()+": "+shortened, status.Code(err).String()+": "+status.Convert(err).Message())
	}
	body := `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"parameters":{"shared_memory_region":"lost","shared_memory_byte_size":8}}]}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.HTTP+"/v2/models/identity/infer", strings.NewReader(body))
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.JSONEq(t, `{"error":"`+shortened+`"}`, string(text))
	stream, err := client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(fromMemory(true, false)))
	require.NoError(t, stream.CloseSend())
	m, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, shortened, m.GetErrorMessage())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)

	require.NoError(t, os.Truncate(path, 4096))
	require.NoError(t, infer(fromMemory(true, true)))
	require.NoError(t, infer(echoed("")))
	require.Equal(t, before, died())
}

// What Conch keeps from a server is known to kill one.
func TestMemoryThatIsTakenAwayKills(t *testing.T) {
	t.Parallel()
	s, err := rig.StartServer(t.Context(), rig.ServerOptions{Server: setting(t, "CONCH_TRITONSERVER"), Repository: conformanceModels(t, "identity"), Flags: []string{"--load-model=identity"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	client, err := thin.Dial(s.GRPC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	path := sharedObject(t, "straight", client.Stub)
	require.NoError(t, os.Truncate(path, 0))
	_, err = client.Stub.ModelInfer(t.Context(), fromMemory(true, false))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}
