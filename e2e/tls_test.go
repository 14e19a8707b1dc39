// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/certs/certstest"
	"github.com/conch-serving/conch/internal/rig"
)

// Conch reaches a real tritonserver that serves gRPC over TLS, and one that asks for conch's own certificate.
func TestTLSToTriton(t *testing.T) {
	t.Parallel()
	authority := certstest.New(t, "authority")
	dir := t.TempDir()
	ca := certstest.Write(t, dir, "ca.pem", authority.PEM)
	serverCertificate, serverKey := authority.Issue("triton", time.Hour).Write(t, dir, "triton")
	ownCertificate, ownKey := authority.Issue("conch", time.Hour).Write(t, dir, "conch")
	for name, c := range map[string]struct {
		arguments []string
		tls       map[string]any
	}{
		"TLS": {
			[]string{"--grpc-use-ssl=true"},
			map[string]any{"ca": ca, "serverName": "localhost"},
		},
		"mutual": {
			[]string{"--grpc-use-ssl-mutual=true", "--grpc-root-cert=" + ca},
			map[string]any{"ca": ca, "serverName": "localhost", "certificate": ownCertificate, "key": ownKey},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := setting(t, "CONCH_TRITONSERVER")
			conch := serve(t, rig.ConchOptions{Repository: repository(t, "emulated"), GPUs: 1, Settings: map[string]any{"driver": map[string]any{
				"kind": "process", "tritonserver": server, "tls": c.tls,
				"arguments": append(c.arguments, "--grpc-server-cert="+serverCertificate, "--grpc-server-key="+serverKey),
			}}})
			stub := triton(t, conch)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			for i := range 20 {
				r, err := stub.ModelInfer(ctx, tensor("emulated", float32(i)))
				require.NoError(t, err)
				require.InDelta(t, 2*i+1, firstOutput(r), 0)
			}
			stream, err := stub.ModelStreamInfer(ctx)
			require.NoError(t, err)
			require.NoError(t, stream.Send(tensor("emulated", 7)))
			require.NoError(t, stream.CloseSend())
			answer, err := stream.Recv()
			require.NoError(t, err)
			require.InDelta(t, 15, firstOutput(answer.InferResponse), 0)
		})
	}
}

// A server of another authority is not trusted: conch does not become ready.
func TestTLSToAStranger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := certstest.Write(t, dir, "ca.pem", certstest.New(t, "trusted").PEM)
	certificate, key := certstest.New(t, "another").Issue("triton", time.Hour).Write(t, dir, "triton")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	server := setting(t, "CONCH_TRITONSERVER")
	_, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: setting(t, "CONCH_BIN"), Server: server, Repository: repository(t, "emulated"), GPUs: 1, Settings: map[string]any{"driver": map[string]any{
			"kind": "process", "tritonserver": server, "tls": map[string]any{"ca": ca, "serverName": "localhost"},
			"arguments": []string{"--grpc-use-ssl=true", "--grpc-server-cert=" + certificate, "--grpc-server-key=" + key},
		}},
	})
	require.ErrorContains(t, err, "is not ready")
}
