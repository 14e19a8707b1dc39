// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// provisioned are options with their defaults.
func provisioned(t *testing.T) Options {
	o := Options{Image: "triton", ModelsPath: "/models", ModelsVolume: "{}"}
	_, _, problems := o.normalise()
	require.Empty(t, problems)
	return o
}

// ready is a node n1 with these labels, on which the device plugin offers some GPUs.
func ready(plugin string, labels map[string]string) *core.Node {
	n := &core.Node{ObjectMeta: meta.ObjectMeta{Name: "n1", Labels: labels}, Status: core.NodeStatus{Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}}}
	if plugin != "" {
		n.Status.Allocatable = core.ResourceList{"nvidia.com/gpu": quantity.MustParse(plugin)}
	}
	return n
}

// device is one of n1's slice; attributes are given as name, value.
func device(name string, attributes ...string) resource.Device {
	d := resource.Device{Name: name, Attributes: map[resource.QualifiedName]resource.DeviceAttribute{}, Capacity: map[resource.QualifiedName]resource.DeviceCapacity{"memory": {Value: quantity.MustParse("10Gi")}}}
	for i := 0; i < len(attributes); i += 2 {
		d.Attributes[resource.QualifiedName(attributes[i])] = resource.DeviceAttribute{StringValue: &attributes[i+1]}
	}
	return d
}

func sliceOf(generation int64, devices ...resource.Device) *resource.ResourceSlice {
	node := "n1"
	return &resource.ResourceSlice{Spec: resource.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &node, Pool: resource.ResourcePool{Name: "n1", Generation: generation}, Devices: devices}}
}

// claimed is a claim of another namespace that has n1's device gpu-0.
func claimed(name, release string, admin *bool) *resource.ResourceClaim {
	c := &resource.ResourceClaim{ObjectMeta: meta.ObjectMeta{Name: name, Namespace: "elsewhere"}}
	if release != "" {
		c.Labels = map[string]string{LabelRelease: release}
	}
	c.Status.Allocation = &resource.AllocationResult{Devices: resource.DeviceAllocationResult{Results: []resource.DeviceRequestAllocationResult{{Driver: "gpu.nvidia.com", Pool: "n1", Device: "gpu-0", AdminAccess: admin}}}}
	return c
}

// TestGPUsOfACluster: what nodes, slices and labels say of GPUs.
func TestGPUsOfACluster(t *testing.T) {
	whole := []string{"type", "gpu", "uuid", "GPU-1", "productName", "NVIDIA A100-SXM4-80GB"}
	mig := []string{"type", "mig", "uuid", "MIG-1", "productName", "NVIDIA A100-SXM4-80GB", "profile", "1g.10gb"}
	dynamic := device("gpu-0-mig", mig...)
	dynamic.ConsumesCounters = []resource.DeviceCounterConsumption{{CounterSet: "gpu-0"}}
	tainted := device("gpu-0", whole...)
	tainted.Taints = []resource.DeviceTaint{{Key: "xid", Value: "79", Effect: resource.DeviceTaintEffectNoExecute}}
	mixed := ready("1", map[string]string{"nvidia.com/mig.strategy": "mixed"})
	mixed.Status.Allocatable["nvidia.com/mig-1g.10gb"] = quantity.MustParse("7")
	plugin := map[string]string{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/gpu.memory": "9728"}
	for name, c := range map[string]struct {
		world   world
		want    []*policy.GPU
		remarks string
	}{
		"a GPU of a DRA driver": {
			world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-0", whole...))}},
			want:  []*policy.GPU{{Id: "n1.gpu-0", Type: "A100-SXM4-80GB", Uuid: "GPU-1", MemoryBytes: 10 << 30, SharesEnforced: true}},
		},
		"an older generation of the pool": {
			world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-9", whole...)), sliceOf(2, device("gpu-0", whole...))}},
			want:  []*policy.GPU{{Id: "n1.gpu-0", Type: "A100-SXM4-80GB", Uuid: "GPU-1", MemoryBytes: 10 << 30, SharesEnforced: true}},
		},
		"a tainted GPU": {
			world: world{slices: []*resource.ResourceSlice{sliceOf(1, tainted)}},
			want:  []*policy.GPU{{Id: "n1.gpu-0", Type: "A100-SXM4-80GB", Uuid: "GPU-1", MemoryBytes: 10 << 30, SharesEnforced: true, Unavailable: true, UnavailableReason: "device taint xid=79:NoExecute"}},
		},
		"a MIG partition is a GPU of its own type, without MPS": {
			world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-0-mig", mig...))}},
			want:  []*policy.GPU{{Id: "n1.gpu-0-mig", Type: "A100-SXM4-80GB-MIG-1g.10gb", Uuid: "MIG-1", MemoryBytes: 10 << 30}},
		},
		"claimed by another namespace's Pod": {
			world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-0", whole...))}, claims: []*resource.ResourceClaim{claimed("trainer", "", nil)}},
			want:  []*policy.GPU{{Id: "n1.gpu-0", Type: "A100-SXM4-80GB", Uuid: "GPU-1", MemoryBytes: 10 << 30, SharesEnforced: true, Unavailable: true, UnavailableReason: "claimed by claim trainer in namespace elsewhere"}},
		},
		"claimed by another namespace's conch": {
			world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-0", whole...))}, claims: []*resource.ResourceClaim{claimed("conch-n1-gpu-0", "conch", nil)}},
			want:  []*policy.GPU{{Id: "n1.gpu-0", Type: "A100-SXM4-80GB", Uuid: "GPU-1", MemoryBytes: 10 << 30, SharesEnforced: true, Unavailable: true, UnavailableReason: "claimed by release conch in namespace elsewhere"}},
		},
		"watched by an administrator": {
			world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-0", whole...))}, claims: []*resource.ResourceClaim{claimed("monitor", "", new(true))}},
			want:  []*policy.GPU{{Id: "n1.gpu-0", Type: "A100-SXM4-80GB", Uuid: "GPU-1", MemoryBytes: 10 << 30, SharesEnforced: true}},
		},
		"DynamicMIG":       {world: world{slices: []*resource.ResourceSlice{sliceOf(1, dynamic)}}, remarks: "n1/gpu-0-mig is one of several ways to partition a GPU (DynamicMIG)"},
		"passed through":   {world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-vfio-0", "type", "vfio", "uuid", "GPU-1"))}}, remarks: "n1/gpu-vfio-0 is of type vfio"},
		"without a uuid":   {world: world{slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-0", "type", "gpu"))}}, remarks: "n1/gpu-0 has no attribute uuid"},
		"no GPUs":          {world: world{nodes: []*core.Node{ready("0", plugin)}}},
		"of another class": {world: world{nodes: []*core.Node{ready("", nil)}}},
		"the device plugin": {
			world: world{nodes: []*core.Node{ready("2", plugin)}},
			want: []*policy.GPU{
				{Id: "n1.gpu-0", Type: "A100-SXM4-80GB-MIG-1g.10gb", MemoryBytes: 9728 << 20}, {Id: "n1.gpu-1", Type: "A100-SXM4-80GB-MIG-1g.10gb", MemoryBytes: 9728 << 20, Index: 1},
			},
		},
		"the device plugin's strategy mixed, for MIG partitions of one of two GPUs": {
			world: world{nodes: []*core.Node{mixed}}, want: []*policy.GPU{{Id: "n1.gpu-0", Type: "unknown"}},
		},
		"the device plugin without labels": {world: world{nodes: []*core.Node{ready("1", nil)}}, want: []*policy.GPU{{Id: "n1.gpu-0", Type: "unknown"}}},
		"the device plugin shares": {
			world:   world{nodes: []*core.Node{ready("8", map[string]string{"nvidia.com/gpu.sharing-strategy": "time-slicing"})}},
			remarks: "n1 shares its GPUs by the device plugin (time-slicing)",
		},
		"DRA and the device plugin on one node": {
			world: world{nodes: []*core.Node{ready("1", plugin)}, slices: []*resource.ResourceSlice{sliceOf(1, device("gpu-0", whole...))}},
			want:  []*policy.GPU{{Id: "n1.gpu-0", Type: "A100-SXM4-80GB", Uuid: "GPU-1", MemoryBytes: 10 << 30, SharesEnforced: true}},
		},
		"what a GPU costs":    {world: world{nodes: []*core.Node{ready("1", map[string]string{labelCost: "2.5"})}}, want: []*policy.GPU{{Id: "n1.gpu-0", Type: "unknown", CostPerHour: 2.5}}},
		"a cost below zero":   {world: world{nodes: []*core.Node{ready("1", map[string]string{labelCost: "-1"})}}, want: []*policy.GPU{{Id: "n1.gpu-0", Type: "unknown"}}},
		"a cost not a number": {world: world{nodes: []*core.Node{ready("1", map[string]string{labelCost: "NaN"})}}, want: []*policy.GPU{{Id: "n1.gpu-0", Type: "unknown"}}},
		"a boundless cost":    {world: world{nodes: []*core.Node{ready("1", map[string]string{labelCost: "Inf"})}}, want: []*policy.GPU{{Id: "n1.gpu-0", Type: "unknown"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.world.nodes == nil {
				c.world.nodes = []*core.Node{ready("", nil)}
			}
			nodes, remarks := provisioned(t).read(c.world, nil)
			require.Contains(t, strings.Join(remarks, "; "), c.remarks)
			require.Equal(t, c.remarks != "", len(remarks) > 0)
			if c.want == nil {
				require.Empty(t, nodes)
				return
			}
			require.Len(t, nodes, 1)
			require.Equal(t, (&policy.Node{Name: "n1", Gpus: c.want}).String(), nodes[0].String())
		})
	}
}

// TestWhyANodeIsNotUsed: taints, as far as the template does not tolerate them, and what is wrong with a node.
func TestWhyANodeIsNotUsed(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*core.Node)
		tolerations []core.Toleration
		want        string
	}{
		"fit":          {func(*core.Node) {}, nil, ""},
		"cordoned":     {func(n *core.Node) { n.Spec.Unschedulable = true }, nil, "cordoned"},
		"no condition": {func(n *core.Node) { n.Status.Conditions = nil }, nil, "node not ready"},
		"going away":   {func(n *core.Node) { n.DeletionTimestamp = &meta.Time{Time: time.Unix(1, 0)} }, nil, "node is being removed"},
		"a taint that repeats the condition": {func(n *core.Node) {
			n.Spec.Taints = []core.Taint{{Key: core.TaintNodeUnreachable, Effect: core.TaintEffectNoSchedule}, {Key: core.TaintNodeNotReady, Effect: core.TaintEffectNoExecute}}
		}, nil, ""},
		"a taint": {func(n *core.Node) {
			n.Spec.Taints = []core.Taint{{Key: "gpu", Value: "a", Effect: core.TaintEffectNoSchedule}}
		}, nil, "taint gpu=a:NoSchedule"},
		"a taint that is tolerated": {
			func(n *core.Node) {
				n.Spec.Taints = []core.Taint{{Key: "gpu", Value: "a", Effect: core.TaintEffectNoSchedule}}
			},
			[]core.Toleration{{Key: "gpu", Operator: core.TolerationOpExists}}, "",
		},
		"a taint of another value": {
			func(n *core.Node) {
				n.Spec.Taints = []core.Taint{{Key: "gpu", Value: "a", Effect: core.TaintEffectNoSchedule}}
			},
			[]core.Toleration{{Key: "gpu", Value: "b"}}, "taint gpu=a:NoSchedule",
		},
		"a taint that is a wish": {func(n *core.Node) {
			n.Spec.Taints = []core.Taint{{Key: "gpu", Effect: core.TaintEffectPreferNoSchedule}}
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := ready("1", nil)
			c.change(n)
			require.Equal(t, c.want, Options{tolerations: c.tolerations}.whyNot(n, false))
		})
	}
}

// TestAMIGPartitionIsClaimedWhole: without MPS, which NVIDIA's driver refuses for it, by its own device class; and it is not divided.
func TestAMIGPartitionIsClaimedWhole(t *testing.T) {
	b := build{Options: provisioned(t)}
	whole, mig := &policy.GPU{Id: "n1.gpu-0", Uuid: "GPU-1"}, &policy.GPU{Id: "n1.gpu-0-mig", Uuid: "MIG-1"}
	for _, c := range []struct {
		gpu   *policy.GPU
		class string
		mps   bool
	}{{whole, "gpu.nvidia.com", true}, {mig, "mig.nvidia.com", false}} {
		devices := b.claim(c.gpu).Spec.Devices
		require.Equal(t, c.class, devices.Requests[0].Exactly.DeviceClassName)
		require.Equal(t, c.mps, len(devices.Config) > 0)
		p := &policy.Partition{Id: "p", Node: "n1", Gpus: []string{c.gpu.GetId()}, ThreadPercentage: 100}
		require.NoError(t, b.refused(p, c.gpu))
		shares := 0
		for _, e := range b.environment(driver.Spec{Partition: p, GPU: c.gpu}) {
			if strings.HasPrefix(e.Name, "CUDA_MPS_") {
				shares++
			}
		}
		require.Equal(t, c.mps, shares > 0)
		p.ThreadPercentage = 40
		if c.mps {
			require.NoError(t, b.refused(p, c.gpu))
		} else {
			require.ErrorContains(t, b.refused(p, c.gpu), "a MIG partition, which conch does not divide further")
		}
	}
}
