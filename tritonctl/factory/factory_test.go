// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package factory_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/tritonctl/factory"
)

// TestAConchOfThisUserIsFound where it listens by default (docs/configuration.md), without --admin and CONCH_ADMIN.
func TestAConchOfThisUserIsFound(t *testing.T) {
	if _, err := os.Stat("/run/conch/admin.sock"); err == nil {
		t.Skip("root's conch is running on this machine, and comes first")
	}
	dir, err := os.MkdirTemp("", "user") // a unix socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for _, c := range []struct {
		environment map[string]string
		socket      string
	}{
		{map[string]string{"XDG_RUNTIME_DIR": dir + "/run", "HOME": dir}, dir + "/run/conch/admin.sock"},
		{map[string]string{"XDG_STATE_HOME": dir + "/state", "HOME": dir}, dir + "/state/conch/admin.sock"},
		{map[string]string{"HOME": dir}, dir + "/.local/state/conch/admin.sock"},
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(c.socket), 0o700))
		l, err := net.Listen("unix", c.socket)
		require.NoError(t, err)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"mode":"observe"}`)) })}
		go func() { _ = server.Serve(l) }()
		api, err := (&factory.Factory{Getenv: func(name string) string { return c.environment[name] }}).Client()
		require.NoError(t, err)
		v, err := api.Version(t.Context())
		require.NoError(t, err)
		require.Equal(t, "observe", v.Mode)
		require.NoError(t, server.Close())
	}
}
