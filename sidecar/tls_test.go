// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/certs/certstest"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// startTLS runs conch with the certificates in dir and a client certificate
// asked for.
func startTLS(t *testing.T, dir string, authority *certstest.Authority) *daemon {
	certificate, key := authority.Issue("conch 1", time.Hour).Write(t, dir, "conch")
	ca := certstest.Write(t, dir, "ca.pem", authority.PEM)
	yaml := strings.Replace(text(writeZoo(t, "alpha"), t.TempDir(), ""), `admin: `,
		fmt.Sprintf(`tls: {certificate: %s, key: %s, clientCA: %s}, admin: `, certificate, key, ca), 1)
	return startConch(t, yaml)
}

// tlsStub calls conch by gRPC with these certificates.
func tlsStub(t *testing.T, c *daemon, settings *tls.Config) tritonpb.GRPCInferenceServiceClient {
	conn, err := grpc.NewClient(c.address("grpc").String(), grpc.WithTransportCredentials(credentials.NewTLS(settings)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return tritonpb.NewGRPCInferenceServiceClient(conn)
}

// live asks by HTTP, on a connection of its own.
func live(t *testing.T, c *daemon, settings *tls.Config) (*tls.ConnectionState, error) {
	transport := &http.Transport{TLSClientConfig: settings, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.address("http").String()+"/v2/health/live", nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	return response.TLS, nil
}

func TestClientsOverTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	c := startTLS(t, t.TempDir(), ours)
	own := ours.Issue("client", time.Hour).TLS(t)
	shows := func(certificates ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: ours.Pool(), Certificates: certificates}
	}

	stub := tlsStub(t, c, shows(own))
	_, err := stub.ServerMetadata(t.Context(), &tritonpb.ServerMetadataRequest{})
	require.NoError(t, err)
	stream, err := stub.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	request := &tritonpb.ModelInferRequest{
		ModelName: "alpha", Id: "1", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 16}}},
		RawInputContents: [][]byte{make([]byte, 64)},
	}
	require.NoError(t, stream.Send(request))
	answer, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "1", answer.GetInferResponse().GetId())
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	state, err := live(t, c, shows(own))
	require.NoError(t, err)
	require.Equal(t, "conch 1", state.PeerCertificates[0].Subject.CommonName)

	expired, stranger := ours.Issue("client", -time.Minute).TLS(t), theirs.Issue("client", time.Hour).TLS(t)
	for name, settings := range map[string]*tls.Config{
		"none": shows(), "expired": shows(expired),
		// Shown although the server does not ask for this authority's.
		"another's":                   {RootCAs: ours.Pool(), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }},
		"a client that trusts others": {RootCAs: theirs.Pool(), Certificates: []tls.Certificate{own}},
		"an old version":              {RootCAs: ours.Pool(), Certificates: []tls.Certificate{own}, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10},
	} {
		_, err := tlsStub(t, c, settings).ServerLive(t.Context(), &tritonpb.ServerLiveRequest{})
		require.Equal(t, codes.Unavailable, status.Code(err), name)
		_, err = live(t, c, settings)
		require.Error(t, err, name)
	}
	_, err = c.client.Live(t.Context())
	require.Error(t, err, "nobody comes in the clear")
}

// TestRotationLosesNothing: certificates are replaced under load, by those of
// another authority even. Open connections stay, and new connections see the new
// ones.
func TestRotationLosesNothing(t *testing.T) {
	t.Parallel()
	first, second := certstest.New(t, "first"), certstest.New(t, "second")
	dir := t.TempDir()
	c := startTLS(t, dir, first)
	client := &tls.Config{RootCAs: first.Pool(), Certificates: []tls.Certificate{first.Issue("client 1", time.Hour).TLS(t)}}
	stub := tlsStub(t, c, client)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int64
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := stub.ModelReady(t.Context(), &tritonpb.ModelReadyRequest{Name: "alpha"}); err != nil {
					t.Errorf("a request is lost: %v", err)
					return
				}
				asked.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return asked.Load() > 10 }, 30*time.Second, time.Millisecond)

	second.Issue("conch 2", time.Hour).Write(t, dir, "conch")
	certstest.Write(t, dir, "ca.pem", second.PEM)
	later := time.Now().Add(time.Minute)
	for _, f := range []string{"conch.pem", "conch.key", "ca.pem"} {
		require.NoError(t, os.Chtimes(filepath.Join(dir, f), later, later))
	}
	next := &tls.Config{RootCAs: second.Pool(), Certificates: []tls.Certificate{second.Issue("client 2", time.Hour).TLS(t)}}
	require.Eventually(t, func() bool {
		state, err := live(t, c, next)
		return err == nil && state.PeerCertificates[0].Subject.CommonName == "conch 2"
	}, 30*time.Second, 50*time.Millisecond)
	// The gRPC door looks at the files for itself, within a second too.
	require.Eventually(t, func() bool {
		_, err := tlsStub(t, c, next).ServerLive(t.Context(), &tritonpb.ServerLiveRequest{})
		return err == nil
	}, 30*time.Second, 50*time.Millisecond)
	_, err := live(t, c, client)
	require.Error(t, err, "the first authority is trusted no more")
	before := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() > before+10 }, 30*time.Second, time.Millisecond)
	cancel()
	callers.Wait()
}
