// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	clienttesting "k8s.io/client-go/testing"
)

// The log of a partition is that of its server's container, as the cluster has it.
func TestTheLogOfAServer(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	d := open(t, options(c))
	_, err := d.Log(t.Context(), "p", -1, false)
	require.ErrorContains(t, err, "partition p has no Pod")
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	text, err := d.Log(t.Context(), "p", 20, true)
	require.NoError(t, err)
	said, err := io.ReadAll(text)
	require.NoError(t, err)
	require.NoError(t, text.Close())
	require.Equal(t, "fake logs", string(said), "client-go's")
	var asked *core.PodLogOptions
	for _, a := range c.Actions() {
		if a.Matches("get", "pods/log") {
			asked = a.(clienttesting.GenericAction).GetValue().(*core.PodLogOptions)
		}
	}
	require.Equal(t, "server", asked.Container)
	require.True(t, asked.Follow)
	require.EqualValues(t, 20, *asked.TailLines)
	require.NoError(t, s.Stop(t.Context()))
}
