// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/internal/certs/certstest"
)

// Servers that speak gRPC over TLS are reached by driver.tls, under one name for all, though each has the address of its Pod. Without it they do not answer.
func TestServersSpeakTLS(t *testing.T) {
	authority := certstest.New(t, "authority")
	c := newCluster(t, node("node-1"), slice("node-1"))
	c.tls = &tls.Config{Certificates: []tls.Certificate{authority.Issue("triton", time.Hour).TLS(t)}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	o := options(c)
	o.Arguments = []string{"--grpc-use-ssl=true"}
	o.Credentials = credentials.NewTLS(&tls.Config{RootCAs: authority.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12})
	d := open(t, o)
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	require.NoError(t, s.Load(t.Context(), "m"))
	require.NoError(t, s.Live(t.Context()))
	require.NoError(t, s.Stop(t.Context()))

	o.Credentials, o.StartTimeout = nil, time.Second
	d = open(t, o)
	_, err = d.Start(t.Context(), part(t, d, "q", 100))
	require.ErrorContains(t, err, "did not get ready")
}
