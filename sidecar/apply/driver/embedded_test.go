// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// emulated writes a model that takes 5 ms.
func emulated(t *testing.T, repository, name string) {
	dir := filepath.Join(repository, name)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(`backend: "python"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: 1 }
parameters { key: "conch_emulate_alpha_us" value { string_value: "0" } }
parameters { key: "conch_emulate_beta_us" value { string_value: "5000" } }
`), 0o644))
}

func answer(ctx context.Context, e Endpoint, model string) (float32, error) {
	conn, err := grpc.NewClient("passthrough:///"+e.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	r, err := tritonpb.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, &tritonpb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 1}}},
		RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, math.Float32bits(3))},
	})
	if err != nil {
		return 0, err
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(r.GetRawOutputContents()[0])), nil
}

func TestEmbeddedServesLoadsAndStops(t *testing.T) {
	t.Parallel()
	repository := t.TempDir()
	emulated(t, repository, "m")
	d := NewEmbedded(EmbeddedOptions{})
	s, err := d.Start(t.Context(), Spec{Partition: &policy.Partition{Id: "p0", ThreadPercentage: 50}, GPU: &policy.GPU{Id: "g0", Emulated: true}, RepositoryDir: repository})
	require.NoError(t, err)
	var refused *LoadError
	require.ErrorAs(t, s.Load(t.Context(), "absent"), &refused)
	require.NoError(t, s.Load(t.Context(), "m"))
	value, err := answer(t.Context(), s.Endpoint(), "m")
	require.NoError(t, err)
	require.InDelta(t, 7, value, 0, "an emulated model answers 2x+1")
	models, err := s.Models(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, models)
	require.NoError(t, s.Unload(t.Context(), "m"))
	_, err = answer(t.Context(), s.Endpoint(), "m")
	require.Error(t, err)
	require.NoError(t, s.Stop(t.Context()))
	<-s.Done()
	require.NoError(t, d.Close())
}

func TestPartitionsOfOneGPUShareIt(t *testing.T) {
	t.Parallel()
	d := NewEmbedded(EmbeddedOptions{})
	for _, id := range []string{"p0", "p1"} {
		s, err := d.Start(t.Context(), Spec{Partition: &policy.Partition{Id: id}, GPU: &policy.GPU{Id: "g0"}, RepositoryDir: t.TempDir()})
		require.NoError(t, err)
		require.NoError(t, s.Kill(t.Context()))
	}
	require.Len(t, d.gpus, 1)
}
