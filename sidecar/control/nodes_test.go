// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/conditions"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// A GPU that goes away is one event, and a plan without it long before the interval is over.
func TestNodesThatChangeArePlannedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 1h\n")
		r.policies.set(available)
		stop := r.start()
		defer stop()
		require.Equal(t, []string{"gpu0", "gpu1"}, r.places())
		r.nodes.Store(&[]*policy.Node{{Name: "n", Gpus: []*policy.GPU{
			{Id: "gpu0", Type: "T4", MemoryBytes: 1 << 34}, {Id: "gpu1", Type: "T4", MemoryBytes: 1 << 34, Unavailable: true, UnavailableReason: "node not ready"},
		}}})
		r.NodesChanged("GPU gpu1 is node not ready")
		pass(5 * time.Second)
		require.Equal(t, []string{"gpu0"}, r.places())
		require.Equal(t, "GPU gpu1 is node not ready", r.lastEvent(events.NodesChanged).Message)
	})
}

// TestTheClusterIsSilent: that its API server does not answer is a condition of the cluster, which is seen with the plan, and an event.
func TestTheClusterIsSilent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.cluster.Store(&conditions.Cluster{Release: "serving"})
		defer r.start()()
		pass(10 * time.Second)
		is := func() api.Condition {
			shown, err := admin.Of(r.Control, nil, nil).Plan(t.Context())
			require.NoError(t, err)
			c, known := api.ConditionOf(shown.Conditions, api.ConditionDegraded)
			require.True(t, known)
			return c
		}
		require.False(t, is().Holds)
		r.cluster.Store(&conditions.Cluster{Release: "serving", Silent: time.Now(), Cause: "connection refused"})
		pass(10 * time.Second)
		require.True(t, is().Holds)
		r.cluster.Store(&conditions.Cluster{Release: "serving"})
		pass(10 * time.Second)
		require.False(t, is().Holds)
		var said []string
		for _, e := range r.Events(0) {
			if e.Fields["cluster"] == "serving" {
				said = append(said, string(e.Kind)+" "+e.Message[:15])
			}
		}
		require.Equal(t, []string{"degraded cluster serving", "recovered cluster serving"}, said)
	})
}
