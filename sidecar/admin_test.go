// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/certs/certstest"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// TestAnOrderHasTheAuthorThatTheKernelKnows on a unix socket, whatever the caller claims.
func TestAnOrderHasTheAuthorThatTheKernelKnows(t *testing.T) {
	c := startConch(t, text(writeZoo(t, "a"), t.TempDir(), "mode: advise"))
	defer c.stop()
	me, err := user.Current()
	require.NoError(t, err)
	_, err = c.admin.Pin(t.Context(), api.PinRequest{Author: "somebody else", Reason: "trying"})
	require.NoError(t, err)
	p, err := c.admin.Plan(t.Context())
	require.NoError(t, err)
	require.Equal(t, me.Username, p.Pin.Author)
}

// TestAdminOverTCP: the admin API over TCP needs TLS and the token.
func TestAdminOverTCP(t *testing.T) {
	dir := t.TempDir()
	authority := certstest.New(t, "operators")
	certificate, key := authority.Issue("conch", time.Hour).Write(t, dir, "conch")
	const secret = "a secret of thirty-two characters"
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte(secret+"\n"), 0o600))
	state := t.TempDir()
	yaml := strings.Replace(text(writeZoo(t, "a"), state, "mode: advise"), `admin: "unix://`+adminSocket(state)+`"`,
		fmt.Sprintf(`admin: "127.0.0.1:0", adminTLS: {certificate: %s, key: %s}, adminToken: %s`, certificate, key, token), 1)
	c := startConch(t, yaml)
	defer c.stop()
	address := "https://" + c.address("admin").String()
	with := func(token string) *client.Client {
		a, err := client.With(address, client.Options{Token: token, TLS: &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost"}})
		require.NoError(t, err)
		t.Cleanup(a.Close)
		return a
	}
	for _, wrong := range []string{"", "a guess", secret + "x"} {
		_, err := with(wrong).Plan(t.Context())
		require.Equal(t, api.CodeUnauthenticated, api.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "--token-file")
	}
	p, err := with(secret).Pin(t.Context(), api.PinRequest{Author: "ada"})
	require.NoError(t, err)
	require.Equal(t, "ada (by token)", p.Pin.Author, "it is a claim, and is marked as a claim")

	// A token is replaced while conch runs; one that other users can read admits no caller.
	require.NoError(t, os.WriteFile(token, []byte("another secret of many characters"), 0o600))
	_, err = with(secret).Plan(t.Context())
	require.Equal(t, api.CodeUnauthenticated, api.CodeOf(err))
	require.NoError(t, os.Chmod(token, 0o644))
	_, err = with("another secret of many characters").Plan(t.Context())
	require.Equal(t, api.CodeUnavailable, api.CodeOf(err))

	_, err = client.With("http://"+c.address("admin").String(), client.Options{Token: secret})
	require.ErrorContains(t, err, "not sent in the clear")
}
