// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/config"
)

// Interference per type of GPU, by type.
func Interference(c *config.Config) []*policy.Interference {
	all := make([]*policy.Interference, 0, len(c.Interference))
	for _, m := range c.Interference {
		all = append(all, &policy.Interference{
			GpuType: m.Type, L2Self: m.L2Self, L2Other: m.L2Other, BandwidthSelf: m.BandwidthSelf, BandwidthOther: m.BandwidthOther, Constant: m.Constant,
		})
	}
	slices.SortFunc(all, func(a, b *policy.Interference) int { return cmp.Compare(a.GetGpuType(), b.GetGpuType()) })
	return all
}

// Offers of GPUs, as conch.yaml lists them.
func Offers(c *config.Config) []*policy.GPUOffer {
	all := make([]*policy.GPUOffer, 0, len(c.Offers))
	for _, o := range c.Offers {
		all = append(all, &policy.GPUOffer{
			Type: o.Type, MaxCount: uint32(o.Count), CostPerHour: o.Cost, MemoryBytes: uint64(o.Memory), SmCount: o.SMCount,
			BandwidthBytesPerSecond: float64(o.Bandwidth), StartSeconds: o.Start.Std().Seconds(),
		})
	}
	return all
}

// CPU that models may use; nil where conch.yaml allows none.
func CPU(c *config.Config) *policy.CPU {
	if c.CPUs.Cores == 0 {
		return nil
	}
	return &policy.CPU{Type: c.CPUs.Type, Cores: c.CPUs.Cores, MemoryBytes: uint64(c.CPUs.Memory), CostPerHour: c.CPUs.Cost}
}

// Types of GPUs and CPUs that there are or could be rented, sorted.
func Types(nodes []*policy.Node, offers []*policy.GPUOffer) []string {
	types := make(map[string]bool)
	for _, n := range nodes {
		for _, g := range n.GetGpus() {
			types[g.GetType()] = true
		}
		if n.GetCpu() != nil {
			types[n.GetCpu().GetType()] = true
		}
	}
	for _, o := range offers {
		types[o.GetType()] = true
	}
	return slices.Sorted(maps.Keys(types))
}
