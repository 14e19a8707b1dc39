// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// What the Lease says of a replica is enough to reach it; what an earlier conch wrote there is a name.
func TestReplicaIdentity(t *testing.T) {
	for _, r := range []kubernetes.Replica{
		{Name: "conch-7d9f-abc", ID: "1", GRPC: "10.0.0.7:8101", HTTP: "10.0.0.7:8100"},
		{Name: "conch", ID: "2", GRPC: "[fd00::1]:8101"},
		{Name: "conch", ID: "3"},
	} {
		require.Equal(t, r, kubernetes.ParseReplica(r.String()))
	}
	require.Equal(t, kubernetes.Replica{Name: "conch-7d9f-abc-0b7c"}, kubernetes.ParseReplica("conch-7d9f-abc-0b7c"))
}

// A replica is reached at the address from which it reaches the API server.
func TestLocalAddress(t *testing.T) {
	for server, want := range map[string]string{"https://127.0.0.1:6443": "127.0.0.1", "http://127.0.0.1": "127.0.0.1", "127.0.0.1:80": "127.0.0.1"} {
		kubeconfig := filepath.Join(t.TempDir(), "config")
		require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: a, cluster: {server: "`+server+`"}}], users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: a, user: u}}]}`), 0o600))
		c, err := kubernetes.Connect("driver.kubernetes.kubeconfig", kubeconfig, "")
		require.NoError(t, err)
		local, err := c.LocalAddress(t.Context())
		require.NoError(t, err, server)
		require.Equal(t, want, local)
		require.NotNil(t, net.ParseIP(local))
	}
}
