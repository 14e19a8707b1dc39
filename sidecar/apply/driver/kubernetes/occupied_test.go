// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// plugged is a node of which the device plugin has four GPUs, and whose Pods nobody starts, in virtual time. Start begins a server there, and changes are those of GPUs.
func plugged(t *testing.T, test func(t *testing.T, c *testCluster, d *kubernetes.Driver, start func(gpu int) (pod string, failed chan error), changes chan string)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		n := node("node-1")
		n.Labels = map[string]string{"nvidia.com/gpu.product": "Tesla-T4"}
		n.Status.Allocatable = core.ResourceList{"nvidia.com/gpu": quantity.MustParse("4")}
		c := newCluster(t, n)
		c.silent = true
		o := options(c)
		o.StartTimeout = 2 * time.Hour
		changes := make(chan string, 16)
		o.Changed = func(reason string) { changes <- reason }
		d := open(t, o)
		test(t, c, d, func(gpu int) (string, chan error) {
			before := c.names()
			g := d.Nodes()[0].GetGpus()[gpu]
			p := &policy.Partition{Id: fmt.Sprintf("p%d", gpu), Node: "node-1", Gpus: []string{g.GetId()}, ThreadPercentage: 100}
			failed := make(chan error, 1)
			go func() {
				_, err := d.Start(t.Context(), driver.Spec{Partition: p, GPU: g, Hash: d.Hash(p, g), RepositoryDir: "/models"})
				failed <- err
			}()
			time.Sleep(time.Second)
			return slices.DeleteFunc(c.names(), func(name string) bool { return slices.Contains(before, name) })[0], failed
		}, changes)
	})
}

// placed gives a Pod a place on node-1; unplaced says that there is none.
func (c *testCluster) placed(name string) {
	p := c.pod(name)
	p.Spec.NodeName, p.Status.Conditions = "node-1", nil
	require.NoError(c.t, c.Tracker().Update(pods, p, namespace))
}

// running has a Pod run at an address at which nobody answers.
func (c *testCluster) running(name string) {
	c.placed(name)
	p := c.pod(name)
	p.Status.Phase, p.Status.PodIP = core.PodRunning, "127.77.77.77"
	p.Status.ContainerStatuses = []core.ContainerStatus{{Name: "server", State: core.ContainerState{Running: &core.ContainerStateRunning{}}}}
	require.NoError(c.t, c.Tracker().Update(pods, p, namespace))
}

func (c *testCluster) unplaced(name string) {
	p := c.pod(name)
	p.Status.Conditions = []core.PodCondition{{Type: core.PodScheduled, Status: core.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."}}
	require.NoError(c.t, c.Tracker().Update(pods, p, namespace))
}

// taken are why node-1's GPUs are unavailable.
func taken(d *kubernetes.Driver) (all []string) {
	for _, g := range d.Nodes()[0].GetGpus() {
		all = append(all, g.GetUnavailableReason())
	}
	return all
}

const byOthers = "taken by a Pod of others"

// Pods of others have two of a node's GPUs: a server finds none. They count as unavailable, by one event, and are tried again after a while, and later the next time.
func TestPodsOfOthersHaveGPUs(t *testing.T) {
	plugged(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver, start func(gpu int) (pod string, failed chan error), changes chan string) {
		own, first := start(0)
		c.placed(own)
		own, second := start(1)
		c.placed(own)
		pod, failed := start(2)
		c.unplaced(pod)
		time.Sleep(30 * time.Second)
		require.Empty(t, changes)
		require.EqualError(t, <-failed, "partition p2: pod conch-p2-1 has no place: Pods of others have 2 of the 4 GPUs of node node-1")
		require.Equal(t, "GPU node-1.gpu-2 is taken by a Pod of others, and another one has changed", <-changes)
		require.Equal(t, []string{"", "", byOthers, byOthers}, taken(d))
		pod, failed = start(2) // as the plan in force has it
		c.unplaced(pod)
		require.Error(t, <-failed)
		time.Sleep(8 * time.Minute)
		require.Empty(t, changes)
		time.Sleep(2 * time.Minute)
		require.Equal(t, "GPU node-1.gpu-2 is available, and another one has changed", <-changes)

		// They are still there.
		pod, failed = start(2)
		c.unplaced(pod)
		require.Error(t, <-failed)
		time.Sleep(2 * time.Second)
		require.Contains(t, <-changes, byOthers)
		time.Sleep(19 * time.Minute)
		require.Equal(t, []string{"", "", byOthers, byOthers}, taken(d))
		time.Sleep(2 * time.Minute)
		require.Contains(t, <-changes, "is available")
		// One has gone: its GPU is there at once.
		pod, failed = start(2)
		c.unplaced(pod)
		require.Error(t, <-failed)
		require.Contains(t, <-changes, byOthers)
		pod, failed = start(2)
		c.running(pod)
		require.Equal(t, "GPU node-1.gpu-2 is available", <-changes)
		for _, name := range c.names() {
			p := c.pod(name)
			p.Status.Phase = core.PodFailed
			require.NoError(t, c.Tracker().Update(pods, p, namespace))
		}
		for _, ended := range []chan error{first, second, failed} {
			require.Error(t, <-ended)
		}
		time.Sleep(2 * time.Second)
		require.Empty(t, changes)
	})
}

// Others have all GPUs of a node but one, which an old server has whose successor finds none. That one is not theirs.
func TestOthersHaveTheGPUsBesideAnOldServer(t *testing.T) {
	plugged(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver, start func(gpu int) (pod string, failed chan error), changes chan string) {
		old, ended := start(0)
		c.placed(old)
		pod, failed := start(0)
		c.unplaced(pod)
		require.ErrorContains(t, <-failed, "Pods of others have 3 of the 4 GPUs of node node-1")
		require.Equal(t, "GPU node-1.gpu-1 is taken by a Pod of others, and others have changed", <-changes)
		require.Equal(t, []string{"", byOthers, byOthers, byOthers}, taken(d))
		p := c.pod(old)
		p.Status.Phase = core.PodFailed
		require.NoError(t, c.Tracker().Update(pods, p, namespace))
		require.Error(t, <-ended)
	})
}

// A GPU that an old server has which is about to end is nobody else's.
func TestAnOldServerHasTheGPU(t *testing.T) {
	plugged(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver, start func(gpu int) (pod string, failed chan error), changes chan string) {
		var all []chan error
		for i := range 4 {
			pod, failed := start(i)
			c.placed(pod)
			all = append(all, failed)
		}
		pod, failed := start(0)
		c.unplaced(pod)
		require.ErrorContains(t, <-failed, "Insufficient nvidia.com/gpu")
		require.Empty(t, changes)
		require.Equal(t, []string{"", "", "", ""}, taken(d))
		for _, ended := range all {
			require.Error(t, <-ended) // in time
		}
	})
}

// A kubelet that has no GPU for a Pod says so at once, again and again.
func TestAKubeletHasNoGPU(t *testing.T) {
	plugged(t, func(t *testing.T, c *testCluster, d *kubernetes.Driver, start func(gpu int) (pod string, failed chan error), changes chan string) {
		for i := range 5 {
			pod, failed := start(3)
			p := c.pod(pod)
			p.Spec.NodeName, p.Status.Phase, p.Status.Reason = "node-1", core.PodFailed, "OutOfnvidia.com/gpu"
			p.Status.Message = "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 4, capacity: 4"
			require.NoError(t, c.Tracker().Update(pods, p, namespace))
			err := <-failed
			if i < 4 {
				require.ErrorContains(t, err, "Node didn't have enough resource")
				require.Empty(t, changes)
			} else {
				require.ErrorContains(t, err, "Pods of others have 4 of the 4 GPUs of node node-1")
			}
			time.Sleep(12 * time.Second)
		}
		require.Contains(t, <-changes, byOthers)
		require.Equal(t, []string{byOthers, byOthers, byOthers, byOthers}, taken(d))
	})
}
