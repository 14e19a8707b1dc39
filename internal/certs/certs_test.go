// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package certs_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/credentials"

	"github.com/conch-serving/conch/internal/certs"
	"github.com/conch-serving/conch/internal/certs/certstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files of one side, in a directory of their own.
func files(t *testing.T, p certstest.Pair, authorities []byte) (dir string, o certs.Options) {
	dir = t.TempDir()
	certificate, key := p.Write(t, dir, "own")
	return dir, certs.Options{
		Certificate: certs.File{Key: "tls.certificate", Path: certificate}, PrivateKey: certs.File{Key: "tls.key", Path: key},
		Authorities: certs.File{Key: "tls.ca", Path: certstest.Write(t, dir, "ca.pem", authorities)}, MinVersion: tls.VersionTLS12,
	}
}

// shake makes a handshake between the two and sends a byte back, without which
// a client of TLS 1.3 does not learn that the server refused it. It returns the
// names in the certificates that client and server saw.
func shake(t *testing.T, server *tls.Config, client credentials.TransportCredentials) (clientSaw, serverSaw string, err error) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	done := make(chan string, 1)
	go func() {
		name := ""
		defer func() { done <- name }()
		raw, err := l.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		conn := tls.Server(raw, server)
		if conn.Handshake() != nil {
			return
		}
		if peers := conn.ConnectionState().PeerCertificates; len(peers) > 0 {
			name = peers[0].Subject.CommonName
		}
		_, _ = conn.Write([]byte{1})
	}()
	raw, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	defer raw.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, info, err := client.ClientHandshake(ctx, "localhost", raw)
	if err == nil {
		clientSaw = info.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	raw.Close()
	return clientSaw, <-done, err
}

func TestBothSidesShowAndCheckCertificates(t *testing.T) {
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	h2 := []string{"h2"} // gRPC insists on it
	for name, c := range map[string]struct {
		server, client certstest.Pair
		trusts         *certstest.Authority
		optional, none bool
		works          bool
	}{
		"mutual":                 {server: ours.Issue("server", time.Hour), client: ours.Issue("client", time.Hour), trusts: ours, works: true},
		"expired client":         {server: ours.Issue("server", time.Hour), client: ours.Issue("client", -time.Minute), trusts: ours},
		"client of another":      {server: ours.Issue("server", time.Hour), client: theirs.Issue("client", time.Hour), trusts: ours},
		"no client certificate":  {server: ours.Issue("server", time.Hour), none: true, trusts: ours},
		"none where it may lack": {server: ours.Issue("server", time.Hour), none: true, optional: true, trusts: ours, works: true},
		"expired where it may":   {server: ours.Issue("server", time.Hour), client: ours.Issue("client", -time.Minute), optional: true, trusts: ours},
		"expired server":         {server: ours.Issue("server", -time.Minute), client: ours.Issue("client", time.Hour), trusts: ours},
		"server of another":      {server: ours.Issue("server", time.Hour), client: ours.Issue("client", time.Hour), trusts: theirs},
	} {
		t.Run(name, func(t *testing.T) {
			_, o := files(t, c.server, ours.PEM)
			o.Optional, o.Protocols = c.optional, h2
			server, err := certs.NewServer(o)
			require.NoError(t, err)
			co := certs.Options{Authorities: certs.File{Key: "ca", Path: certstest.Write(t, t.TempDir(), "ca.pem", c.trusts.PEM)}, MinVersion: tls.VersionTLS12}
			if !c.none {
				certificate, key := c.client.Write(t, t.TempDir(), "client")
				co.Certificate, co.PrivateKey = certs.File{Path: certificate}, certs.File{Path: key}
			}
			client, err := certs.NewClient(co)
			require.NoError(t, err)
			_, _, err = shake(t, server, client)
			require.Equal(t, c.works, err == nil, "%v", err)
		})
	}
}

// TestReplacedFiles: both sides follow their files, and keep the last good
// ones.
func TestReplacedFiles(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	first, second := certstest.New(t, "first"), certstest.New(t, "second")
	serverDir, so := files(t, first.Issue("server 1", time.Hour), first.PEM)
	clientDir, co := files(t, first.Issue("client 1", time.Hour), first.PEM)
	so.Now, co.Now, so.Protocols = clock, clock, []string{"h2"}
	server, err := certs.NewServer(so)
	require.NoError(t, err)
	client, err := certs.NewClient(co)
	require.NoError(t, err)
	check := func(wantServer, wantClient string) {
		t.Helper()
		saw, seen, err := shake(t, server, client.Clone())
		require.NoError(t, err)
		require.Equal(t, []string{wantServer, wantClient}, []string{saw, seen})
	}
	check("server 1", "client 1")

	certstest.Write(t, serverDir, "own.pem", []byte("half a"))
	now = now.Add(2 * time.Second)
	check("server 1", "client 1")

	// Another authority altogether, on both sides.
	for dir, name := range map[string]string{serverDir: "server 2", clientDir: "client 2"} {
		second.Issue(name, 2*time.Hour).Write(t, dir, "own")
		certstest.Write(t, dir, "ca.pem", second.PEM)
		later := now.Add(time.Minute)
		for _, f := range []string{"own.pem", "own.key", "ca.pem"} {
			require.NoError(t, os.Chtimes(filepath.Join(dir, f), later, later))
		}
	}
	now = now.Add(2 * time.Second)
	check("server 2", "client 2")
}

func TestErrorsNameFileAndKey(t *testing.T) {
	ca := certstest.New(t, "ca")
	other := ca.Issue("other", time.Hour)
	dir, good := files(t, ca.Issue("server", time.Hour), ca.PEM)
	_, otherKey := other.Write(t, dir, "other")
	for want, change := range map[string]func(*certs.Options){
		"tls.certificate: open /nowhere":       func(o *certs.Options) { o.Certificate.Path = "/nowhere" },
		"tls.key: open /nowhere":               func(o *certs.Options) { o.PrivateKey.Path = "/nowhere" },
		"private key does not match":           func(o *certs.Options) { o.PrivateKey.Path = otherKey },
		"holds no certificate in PEM":          func(o *certs.Options) { o.Authorities.Path = otherKey },
		"tls.ca: read " + dir + ": is a direc": func(o *certs.Options) { o.Authorities.Path = dir },
	} {
		o := good
		change(&o)
		_, err := certs.NewServer(o)
		require.ErrorContains(t, err, want)
		_, err = certs.NewClient(o)
		require.ErrorContains(t, err, want)
	}
}
