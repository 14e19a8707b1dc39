// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/conch-serving/conch/internal/bubble"
)

// change changes a node of the cluster.
func change(t *testing.T, c *testCluster, name string, do func(*core.Node)) {
	t.Helper()
	n, err := c.CoreV1().Nodes().Get(t.Context(), name, meta.GetOptions{})
	require.NoError(t, err)
	n = n.DeepCopy()
	do(n)
	_, err = c.CoreV1().Nodes().Update(t.Context(), n, meta.UpdateOptions{})
	require.NoError(t, err)
}

// What the cluster says of its nodes reaches the snapshot, and changes are reported.
func TestNodesComeAndGo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"), node("node-9"), slice("node-9"))
		changes := make(chan string, 16)
		o := options(c)
		o.Changed = func(reason string) { changes <- reason }
		d := open(t, o)
		for _, step := range []struct {
			change func(*core.Node)
			want   string
		}{
			{func(n *core.Node) { n.Spec.Unschedulable = true }, "cordoned"},
			{func(n *core.Node) { n.Spec.Unschedulable = false }, ""},
			{func(n *core.Node) { n.Status.Conditions[0].Status = core.ConditionUnknown }, "node not ready"},
			{func(n *core.Node) {
				n.Status.Conditions[0].Status = core.ConditionTrue
				n.Spec.Taints = []core.Taint{{Key: "gone", Effect: core.TaintEffectNoExecute}}
			}, "taint gone:NoExecute"},
		} {
			change(t, c, "node-1", step.change)
			<-changes
			g := d.Nodes()[0].GetGpus()[1]
			require.Equal(t, step.want, g.GetUnavailableReason())
			require.Equal(t, step.want != "", g.GetUnavailable())
		}
		change(t, c, "node-1", func(n *core.Node) { n.Annotations = map[string]string{"heartbeat": "1"} })
		_, err := c.CoreV1().Nodes().Create(t.Context(), node("node-2"), meta.CreateOptions{})
		require.NoError(t, err)
		_, err = c.ResourceV1().ResourceSlices().Create(t.Context(), slice("node-2"), meta.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, "GPU node-2.gpu-0 is available, and another one has changed", <-changes)
		require.Empty(t, changes)
		require.Equal(t, "A100-SXM4-80GB", d.Nodes()[1].GetGpus()[0].GetType())
		require.EqualValues(t, 80<<30, d.Nodes()[1].GetGpus()[0].GetMemoryBytes())
	})
}

// An outage of the API server takes no GPU away: nodes are called not ready one after the other, and are ready again one after the other.
func TestAnOutageTakesNoNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"), node("node-9"), slice("node-9"))
		changes := make(chan string, 16)
		o := options(c)
		o.Changed = func(reason string) { changes <- reason }
		open(t, o)
		is := func(status core.ConditionStatus) func(*core.Node) {
			return func(n *core.Node) { n.Status.Conditions[0].Status = status }
		}
		for range 3 {
			change(t, c, "node-1", is(core.ConditionUnknown))
			time.Sleep(3 * time.Second)
			change(t, c, "node-9", is(core.ConditionUnknown))
			time.Sleep(10 * time.Minute)
			change(t, c, "node-1", is(core.ConditionTrue))
			time.Sleep(20 * time.Second)
			change(t, c, "node-9", is(core.ConditionTrue))
			time.Sleep(time.Hour)
		}
		require.Empty(t, changes)
		change(t, c, "node-1", is(core.ConditionUnknown))
		require.Equal(t, "GPU node-1.gpu-0 is node not ready, and another one has changed", <-changes)
	})
}
