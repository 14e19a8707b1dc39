// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	thin "github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// repeated asks the decoupled model for n answers.
func repeated(id string, n int, emptyFinal bool) *tritonpb.ModelInferRequest {
	zeros := make([]byte, 4*n)
	return &tritonpb.ModelInferRequest{
		ModelName: "decoupled", Id: id, RawInputContents: [][]byte{zeros, zeros},
		Inputs:     []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("IN", "INT32", int64(n)), rawInput("DELAY", "UINT32", int64(n))},
		Parameters: map[string]*tritonpb.InferParameter{"triton_enable_empty_final_response": flag(emptyFinal)},
	}
}

func echoed(id string) *tritonpb.ModelInferRequest {
	return &tritonpb.ModelInferRequest{
		ModelName: "identity", Id: id, RawInputContents: [][]byte{binary.LittleEndian.AppendUint64(nil, 1)},
		Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "FP32", 1, 2)},
	}
}

// inTurns asks models of both kinds on one stream, one after the other.
func inTurns(ctx context.Context, client tritonpb.GRPCInferenceServiceClient, rounds int) error {
	s, err := client.ModelStreamInfer(ctx)
	if err != nil {
		return err
	}
	for range rounds {
		for _, r := range []*tritonpb.ModelInferRequest{echoed("plain"), repeated("once", 1, false), repeated("ends", 1, true)} {
			if err := s.Send(r); err != nil {
				return err
			}
			for last := false; !last; {
				m, err := s.Recv()
				if err != nil {
					return err
				}
				got := m.GetInferResponse()
				final := got.GetParameters()["triton_final_response"].GetBoolParam()
				if m.GetErrorMessage() != "" || got.GetId() != r.Id || final && r.ModelName == "decoupled" && len(got.GetOutputs()) > 0 {
					return fmt.Errorf("an answer to %s: %v", r.Id, m)
				}
				last = final || r.Id == "once"
			}
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the end of a stream: %w", err)
	}
	return nil
}

// observed is a real server with some of the models of the conformance suite, and a Conch that observes it.
func observed(t *testing.T, models ...string) (*rig.Server, *rig.Conch) {
	o := rig.ServerOptions{Server: setting(t, "CONCH_TRITONSERVER"), Repository: conformanceModels(t, models...)}
	for _, m := range models {
		o.Flags = append(o.Flags, "--load-model="+m)
	}
	server, err := rig.StartServer(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", server.LogTail())
		}
		require.NoError(t, server.Close())
	})
	return server, serve(t, rig.ConchOptions{Attach: []*rig.Server{server}, Mode: "observe"})
}

// A real server crashes when requests of decoupled models follow others on streams, and when streams are cancelled that it is answering:
// as it stands, within some hundred requests or some thousand cancels. Behind Conch, though it only observes, it does not.
func TestStreamsThatKill(t *testing.T) {
	t.Parallel()
	server, c := observed(t, "decoupled", "identity")

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var clean, hasty sync.WaitGroup
	var over atomic.Bool
	errs := make([]error, 8)
	for i := range errs {
		client := triton(t, c)
		clean.Go(func() { errs[i] = inTurns(ctx, client, 40) })
	}
	for i := range 4 {
		client := triton(t, c)
		random := rand.New(rand.NewPCG(1, uint64(i)))
		hasty.Go(func() {
			for cancels := 0; cancels < 200 && !over.Load(); cancels++ {
				gone, leave := context.WithCancel(ctx)
				if s, err := client.ModelStreamInfer(gone); err == nil {
					for k := range 1 + random.IntN(3) {
						_ = s.Send(repeated("hasty", k, k%2 == 0)) // whatever becomes of it
					}
					time.Sleep(time.Duration(random.IntN(6000)) * time.Microsecond)
				}
				leave()
				time.Sleep(20 * time.Millisecond) // the server does not stop what it has begun, and is not to be swamped
			}
		})
	}
	clean.Wait()
	over.Store(true)
	hasty.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	straight, err := thin.Dial(server.GRPC)
	require.NoError(t, err)
	defer func() { require.NoError(t, straight.Close()) }()
	live, err := straight.Stub.ServerLive(ctx, &tritonpb.ServerLiveRequest{})
	require.NoError(t, err)
	require.True(t, live.GetLive(), "it did not die")
}
