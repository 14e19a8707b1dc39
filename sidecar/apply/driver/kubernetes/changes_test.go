// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
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
			time.Sleep(3 * time.Minute)
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

// A device plugin that is started anew takes no GPU away: its node offers none for a moment. Where it offers none for longer, it has none.
func TestADevicePluginIsStartedAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		offers := func(gpus string) func(*core.Node) {
			return func(n *core.Node) {
				n.Labels = map[string]string{"nvidia.com/gpu.product": "Tesla-T4"}
				n.Status.Allocatable = core.ResourceList{"nvidia.com/gpu": quantity.MustParse(gpus)}
			}
		}
		one, other := node("node-1"), node("node-9")
		offers("4")(one)
		offers("4")(other)
		c := newCluster(t, one, other)
		changes := make(chan string, 16)
		o := options(c)
		o.Changed = func(reason string) { changes <- reason }
		d := open(t, o)
		change(t, c, "node-1", offers("0"))
		time.Sleep(30 * time.Second)
		require.Len(t, d.Nodes(), 2)
		change(t, c, "node-1", offers("4"))
		time.Sleep(10 * time.Minute)
		require.Empty(t, changes)
		change(t, c, "node-1", offers("0"))
		time.Sleep(10 * time.Minute)
		require.Len(t, changes, 1)
		require.Contains(t, <-changes, "is no more")
		require.Len(t, d.Nodes(), 1)
		require.NoError(t, c.CoreV1().Nodes().Delete(t.Context(), "node-9", meta.DeleteOptions{}))
		time.Sleep(5 * time.Second)
		require.Len(t, changes, 1, "a node that is deleted has none at once")
	})
}
