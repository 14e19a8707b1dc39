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
	"k8s.io/client-go/kubernetes/fake"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

const a100 = "A100-SXM4-80GB"

// growing is a cluster whose Pods nobody starts, and a driver that grows it, in virtual time.
func growing(t *testing.T, test func(t *testing.T, c *testCluster, d *kubernetes.Driver), objects ...any) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.silent = true
		for _, o := range objects {
			add(t, c.Clientset, o)
		}
		o := options(c)
		o.Grow, o.Template = true, `{"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}`
		d, err := begin(t.Context(), o)
		require.NoError(t, err)
		test(t, c, d)
		require.NoError(t, d.Close())
	})
}

func add(t *testing.T, c *fake.Clientset, o any) {
	t.Helper()
	var err error
	if n, is := o.(*core.Node); is {
		_, err = c.CoreV1().Nodes().Create(t.Context(), n, meta.CreateOptions{})
	} else {
		err = c.Tracker().Add(slice(o.(string)))
	}
	require.NoError(t, err)
}

func (c *testCluster) claimNames() (all []string) {
	list, err := c.ResourceV1().ResourceClaims(namespace).List(c.t.Context(), meta.ListOptions{})
	require.NoError(c.t, err)
	for _, claim := range list.Items {
		all = append(all, claim.Name)
	}
	return all
}

// The load wants four GPUs, and two are there: two Pods that stay Pending stand for the others. The first that finds a node makes room there, and is not made anew.
func TestPodsStandForGPUsThatAreWanted(t *testing.T) {
	growing(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver) {
		time.Sleep(time.Minute)
		require.Empty(t, c.names(), "nothing is known of what the load wants")
		d.Want(map[string]int{a100: 4})
		time.Sleep(3 * time.Second)
		require.Len(t, c.names(), 2)
		p := c.pod(c.names()[0])
		require.Equal(t, p.Name, *p.Spec.ResourceClaims[0].ResourceClaimName)
		require.Equal(t, []string{"--help"}, p.Spec.Containers[0].Args)
		require.Equal(t, "gpu", p.Spec.Tolerations[0].Key)
		require.Nil(t, p.Spec.Affinity.NodeAffinity)
		require.Empty(t, p.Labels["conch.io/release"], "it is none of the servers")
		claim, err := c.ResourceV1().ResourceClaims(namespace).Get(t.Context(), p.Name, meta.GetOptions{})
		require.NoError(t, err)
		require.Contains(t, claim.Spec.Devices.Requests[0].Exactly.Selectors[0].CEL.Expression, `productName == "NVIDIA A100-SXM4-80GB"`)
		time.Sleep(time.Minute)
		require.Len(t, c.names(), 2)
		require.Len(t, c.claimNames(), 2, "a claim that is waited with is in use")

		d.Want(nil)
		time.Sleep(time.Minute)
		require.Len(t, c.names(), 2, "what is not known changes nothing")

		placed := c.names()[0]
		p = c.pod(placed)
		p.Spec.NodeName = "node-2"
		require.NoError(t, c.Tracker().Update(pods, p, namespace))
		time.Sleep(10 * time.Second)
		require.NotContains(t, c.names(), placed, "its node is there")
		require.Len(t, c.names(), 1)
		add(t, c.Clientset, node("node-2"))
		add(t, c.Clientset, "node-2")
		time.Sleep(10 * time.Second)
		require.Empty(t, c.names(), "two GPUs have come")
		time.Sleep(2 * time.Minute)
		require.Empty(t, c.names())
		require.Empty(t, c.claimNames())
	}, node("node-1"), "node-1")
}

// What a wrong number asks for is bounded, and a load that wants fewer takes its wish back.
func TestStandInsAreBounded(t *testing.T) {
	growing(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver) {
		d.Want(map[string]int{a100: 1000, "H100": 3})
		time.Sleep(5 * time.Second)
		require.Len(t, c.names(), 8, "and none of a type that nobody has seen")
		d.Want(map[string]int{a100: 3})
		time.Sleep(5 * time.Second)
		require.Len(t, c.names(), 1)
		d.Want(map[string]int{a100: 1})
		time.Sleep(5 * time.Second)
		require.Empty(t, c.names())
	}, node("node-1"), "node-1")
}

// Without DRA a stand-in asks for a node of the product, and for one GPU of the device plugin.
func TestAStandInWithoutDRA(t *testing.T) {
	n := node("node-1")
	n.Labels = map[string]string{"nvidia.com/gpu.product": "Tesla-T4"}
	n.Status.Allocatable = core.ResourceList{"nvidia.com/gpu": quantity.MustParse("1")}
	growing(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver) {
		d.Want(map[string]int{"Tesla-T4": 2})
		time.Sleep(3 * time.Second)
		require.Len(t, c.names(), 1)
		p := c.pod(c.names()[0])
		require.Contains(t, p.Name, "conch-wanted-tesla-t4")
		require.Equal(t, "Tesla-T4", p.Spec.NodeSelector["nvidia.com/gpu.product"])
		require.EqualValues(t, 1, p.Spec.Containers[0].Resources.Limits.Name("nvidia.com/gpu", quantity.DecimalSI).Value())
		require.Empty(t, p.Spec.ResourceClaims)
	}, n)
}

// The last node with GPUs dies, and is deleted. Others are asked for once it counts as lost, as it has asked for its own.
func TestTheLastNodeDies(t *testing.T) {
	growing(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver) {
		d.Want(map[string]int{a100: 2})
		time.Sleep(time.Minute)
		change(t, c, "node-1", func(n *core.Node) { n.Status.Conditions[0].Status = core.ConditionUnknown })
		time.Sleep(4 * time.Minute)
		require.Empty(t, c.names(), "it may be the control plane's trouble")
		time.Sleep(2 * time.Minute)
		require.Equal(t, "node not ready", d.Nodes()[0].GetGpus()[0].GetUnavailableReason())
		require.Len(t, c.names(), 2)
		require.NoError(t, c.CoreV1().Nodes().Delete(t.Context(), "node-1", meta.DeleteOptions{}))
		require.NoError(t, c.ResourceV1().ResourceSlices().Delete(t.Context(), "node-1-gpus", meta.DeleteOptions{}))
		d.Want(map[string]int{a100: 3})
		time.Sleep(time.Minute)
		require.Empty(t, d.Nodes())
		require.Len(t, c.names(), 3)
	}, node("node-1"), "node-1")
}

// The DRA driver of a node that goes ends before the node is gone, whose label says the product still. Others are asked for as it has asked for its own.
func TestTheLastNodeGoesAfterItsDriver(t *testing.T) {
	n := node("node-1")
	n.Labels = map[string]string{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
	growing(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver) {
		d.Want(map[string]int{a100: 2})
		time.Sleep(time.Minute)
		require.NoError(t, c.ResourceV1().ResourceSlices().Delete(t.Context(), "node-1-gpus", meta.DeleteOptions{}))
		time.Sleep(10 * time.Second)
		require.NoError(t, c.CoreV1().Nodes().Delete(t.Context(), "node-1", meta.DeleteOptions{}))
		time.Sleep(time.Minute)
		require.Empty(t, d.Nodes())
		require.Len(t, c.names(), 2)
		for _, name := range c.names() {
			require.Len(t, c.pod(name).Spec.ResourceClaims, 1)
		}
	}, n, "node-1")
}
