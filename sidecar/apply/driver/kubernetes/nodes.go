// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"

	"github.com/conch-serving/conch/plugins/policy"
)

// Why GPUs are unavailable, besides taints and claims.
const (
	cordoned  = "cordoned"
	notReady  = "node not ready"
	beingGone = "node is being removed"
)

// world is what a cluster's objects say of its GPUs; it is a function of them alone.
type world struct {
	nodes  []*core.Node
	slices []*resource.ResourceSlice
	claims []*resource.ResourceClaim
}

// gpuID is the id of a GPU: unique in the cluster, and NODE is what stands before the last dot.
func gpuID(node, device string) string { return node + "." + device }

// read returns the nodes that have GPUs, sorted by name, with what is amiss with devices that are left out. That the nodes that are excused are not ready counts for nothing.
func (o Options) read(w world, excused map[string]bool) (nodes []*policy.Node, remarks []string) {
	byNode := map[string][]*resource.ResourceSlice{}
	for _, s := range w.latest(o.GPUDriver) {
		if s.Spec.NodeName != nil {
			byNode[*s.Spec.NodeName] = append(byNode[*s.Spec.NodeName], s)
		}
	}
	taken := o.taken(w.claims)
	for _, n := range slices.SortedFunc(slices.Values(w.nodes), func(a, b *core.Node) int { return strings.Compare(a.Name, b.Name) }) {
		var gpus []*policy.GPU
		if own := byNode[n.Name]; len(own) > 0 {
			for _, s := range own {
				for _, d := range s.Spec.Devices {
					g, remark := o.draGPU(n, &d)
					if remark != "" {
						remarks = append(remarks, remark)
						continue
					}
					if whose := taken[s.Spec.Pool.Name+"/"+d.Name]; whose != "" {
						unavailable(g, "claimed by "+whose)
					}
					gpus = append(gpus, g)
				}
			}
		} else {
			var remark string
			if gpus, remark = o.pluginGPUs(n); remark != "" {
				remarks = append(remarks, remark)
			}
		}
		if len(gpus) == 0 {
			continue
		}
		slices.SortFunc(gpus, func(a, b *policy.GPU) int {
			return cmp.Or(cmp.Compare(len(a.GetId()), len(b.GetId())), strings.Compare(a.GetId(), b.GetId()))
		})
		why := o.whyNot(n, excused[n.Name])
		cost, err := strconv.ParseFloat(n.Labels[labelCost], 64)
		if err != nil || !(cost > 0) || math.IsInf(cost, 1) {
			cost = 0 // as without the label
		}
		for i, g := range gpus {
			g.Index, g.CostPerHour = uint32(i), cost
			if why != "" {
				unavailable(g, why)
			}
			facts := o.Complete(GPUFacts{Type: g.GetType()})
			g.SmCount, g.BandwidthBytesPerSecond = facts.SMCount, facts.BandwidthBytesPerSecond
			if !g.GetEmulated() {
				g.ContextBytes = facts.ContextBytes
			}
		}
		nodes = append(nodes, &policy.Node{Name: n.Name, Gpus: gpus})
	}
	return nodes, remarks
}

func unavailable(g *policy.GPU, why string) { g.Unavailable, g.UnavailableReason = true, why }

// latest are the slices of a driver's pools, of their newest generation alone.
func (w world) latest(driver string) (all []*resource.ResourceSlice) {
	newest := map[string]int64{}
	for _, s := range w.slices {
		if s.Spec.Driver == driver {
			newest[s.Spec.Pool.Name] = max(newest[s.Spec.Pool.Name], s.Spec.Pool.Generation)
		}
	}
	for _, s := range w.slices {
		if s.Spec.Driver == driver && s.Spec.Pool.Generation == newest[s.Spec.Pool.Name] {
			all = append(all, s)
		}
	}
	return all
}

// taken says whose claim holds a device, by pool/device, where that is not one of this release.
func (o Options) taken(claims []*resource.ResourceClaim) map[string]string {
	all := map[string]string{}
	for _, c := range claims {
		release := c.Labels[LabelRelease]
		if release == o.Release && c.Namespace == o.Namespace || c.Status.Allocation == nil {
			continue
		}
		whose := "claim " + c.Name
		if release != "" {
			whose = "release " + release
		}
		for _, d := range c.Status.Allocation.Devices.Results {
			// Access as an administrator, to watch a GPU for example, takes it from nobody.
			if d.Driver == o.GPUDriver && (d.AdminAccess == nil || !*d.AdminAccess) {
				all[d.Pool+"/"+d.Device] = whose + " in namespace " + c.Namespace
			}
		}
	}
	return all
}

// draGPU is a device of a ResourceSlice, as NVIDIA's driver describes one.
func (o Options) draGPU(n *core.Node, d *resource.Device) (g *policy.GPU, remark string) {
	name := n.Name + "/" + d.Name
	if len(d.ConsumesCounters) > 0 {
		return nil, name + " is one of several ways to partition a GPU (DynamicMIG), which conch does not choose among"
	}
	kind, uuid := o.text(d, "type"), o.text(d, "uuid")
	if kind != "" && kind != "gpu" && kind != "mig" {
		return nil, name + " is of type " + kind + ", on which no tritonserver runs"
	}
	if uuid == "" {
		return nil, name + " has no attribute uuid, by which a claim could ask for it"
	}
	g = &policy.GPU{Id: gpuID(n.Name, d.Name), Type: gpuTypeNamed(o.text(d, "productName")), Uuid: uuid}
	if profile := o.text(d, "profile"); kind == "mig" && profile != "" {
		g.Type += "-MIG-" + profile
	}
	for _, key := range []string{"memory", o.GPUDriver + "/memory"} {
		if c, ok := d.Capacity[resource.QualifiedName(key)]; ok {
			g.MemoryBytes = uint64(max(c.Value.Value(), 0))
		}
	}
	if a, ok := d.Attributes["emulated"]; ok && a.BoolValue != nil {
		g.Emulated = *a.BoolValue
	}
	g.SharesEnforced = o.byMPS(g) && !g.GetEmulated()
	for _, t := range d.Taints {
		if t.Effect == resource.DeviceTaintEffectNoSchedule || t.Effect == resource.DeviceTaintEffectNoExecute {
			unavailable(g, fmt.Sprintf("device taint %s=%s:%s", t.Key, t.Value, t.Effect))
		}
	}
	return g, ""
}

// text is an attribute of a device; empty where it has none.
func (o Options) text(d *resource.Device, key string) string {
	for _, name := range []string{key, o.GPUDriver + "/" + key} {
		if a, ok := d.Attributes[resource.QualifiedName(name)]; ok && a.StringValue != nil {
			return *a.StringValue
		}
	}
	return ""
}

// gpuTypeNamed is the name of a product as NVML's is written elsewhere in conch: A100-SXM4-80GB.
func gpuTypeNamed(product string) string {
	product = strings.ReplaceAll(strings.TrimSpace(product), " ", "-")
	return cmp.Or(strings.TrimPrefix(product, "NVIDIA-"), "unknown")
}

// pluginGPUs are those that the device plugin offers on a node, described by GPU feature discovery.
func (o Options) pluginGPUs(n *core.Node) (gpus []*policy.GPU, remark string) {
	count := n.Status.Allocatable[core.ResourceName(o.GPUResource)]
	if count.Value() <= 0 {
		return nil, ""
	}
	if strategy := n.Labels["nvidia.com/gpu.sharing-strategy"]; strategy != "" && strategy != "none" {
		return nil, fmt.Sprintf("%s shares its GPUs by the device plugin (%s), which gives all Pods the same part; conch uses GPUs that are not shared, or DRA", n.Name, strategy)
	}
	mebibytes, _ := strconv.ParseUint(n.Labels["nvidia.com/gpu.memory"], 10, 44)
	for i := range min(count.Value(), 64) {
		gpus = append(gpus, &policy.GPU{Id: gpuID(n.Name, fmt.Sprintf("gpu-%d", i)), Type: gpuTypeNamed(n.Labels[labelProduct]), MemoryBytes: mebibytes << 20})
	}
	return gpus, ""
}

// whyNot is why nothing may be placed on a node; empty where it may. With excused, that it is not ready counts for nothing.
func (o Options) whyNot(n *core.Node, excused bool) string {
	if n.DeletionTimestamp != nil {
		return beingGone
	}
	if !excused && !isReady(n) {
		return notReady
	}
	if n.Spec.Unschedulable {
		return cordoned
	}
	for _, t := range n.Spec.Taints {
		if t.Key == core.TaintNodeNotReady || t.Key == core.TaintNodeUnreachable {
			continue // they repeat the condition, some seconds later
		}
		if t.Effect == core.TaintEffectPreferNoSchedule || slices.ContainsFunc(o.tolerations, func(l core.Toleration) bool { return l.ToleratesTaint(logr.Discard(), &t, true) }) {
			continue
		}
		return strings.TrimSuffix(fmt.Sprintf("taint %s=%s", t.Key, t.Value), "=") + ":" + string(t.Effect)
	}
	return ""
}
