// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
)

// becomes changes the status of a Pod.
func (c *testCluster) becomes(name string, change func(*core.PodStatus)) {
	p := c.pod(name)
	change(&p.Status)
	require.NoError(c.t, c.Tracker().Update(pods, p, namespace))
}

func killed(exit int32, reason string) core.ContainerState {
	return core.ContainerState{Terminated: &core.ContainerStateTerminated{ExitCode: exit, Reason: reason}}
}

// A server that has ended is dead, with the reason, whatever else of its Pod runs, and the Pod goes.
func TestWhyAServerDied(t *testing.T) {
	for name, of := range map[string]struct {
		became func(*core.PodStatus)
		want   string
	}{
		"another container runs on": {func(s *core.PodStatus) {
			s.ContainerStatuses[0].State = killed(137, "OOMKilled")
			s.ContainerStatuses = append(s.ContainerStatuses, core.ContainerStatus{Name: "beside", State: core.ContainerState{Running: &core.ContainerStateRunning{}}})
		}, "tritonserver in pod conch-p-1 ended with exit status 137 (OOMKilled)"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, node("node-1"), slice("node-1"))
			d := open(t, options(c))
			s, err := d.Start(t.Context(), part(t, d, "p", 100))
			require.NoError(t, err)
			c.becomes("conch-p-1", of.became)
			eventually(t, "the server is dead", func() bool { return s.Death() != "" })
			require.Equal(t, of.want, s.Death())
			eventually(t, "the dead Pod goes", func() bool { return len(c.names()) == 0 })
		})
	}
}
