// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	"github.com/conch-serving/conch/plugins/policy"
)

// nine are the models of gpulet's schedulability study with its SLOs (its artifact's scripts and table 4). Their latencies are not published: those
// here are ours. On a whole GPU a batch of 32 takes half of the SLO, which is how the paper sets SLOs, and a batch of one 15% of that; a share
// below the knee slows in proportion to what it lacks, and a batch of one is content with half of the knee.
var nine = []struct {
	name string
	slo  float64 // ms
	knee float64 // percent, at a batch of 32
	l2   float64 // L2 and bandwidth utilisation at a batch of 32
	dram float64
}{
	{"lenet1", 5, 20, .1, .05}, {"googlenet", 66, 50, .25, .3}, {"resnet50", 108, 60, .3, .4}, {"ssd-mobilenetv1", 202, 60, .3, .35},
	{"vgg16", 142, 80, .4, .5}, {"mnasnet1_0", 62, 40, .2, .3}, {"mobilenet_v2", 64, 40, .2, .35}, {"densenet161", 202, 50, .3, .45}, {"bert", 22, 60, .35, .3},
}

// nineOnFour is the world of the study: the nine models on four GPUs, without load.
func nineOnFour() *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n"}}, Interference: []*policy.Interference{policy.GpuletInterference("2080Ti")}}
	for i := range 4 {
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{
			Id: fmt.Sprintf("gpu%d", i), Type: "2080Ti", Index: uint32(i), MemoryBytes: 11 << 30, CostPerHour: 1, Emulated: true, SharesEnforced: true, //nolint:gosec // small
		})
	}
	for _, m := range nine {
		s.Models = append(s.Models, &policy.Model{
			Name: m.name, SloUs: int64(m.slo * 1e3), MaxBatchSize: 32, Batchable: true, MemoryBytes: 200 << 20, Burstiness: 1, Late: policy.LatePolicy_LATE_POLICY_DROP,
		})
		p := &policy.Profile{Model: m.name, GpuType: "2080Ti", Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED}
		for _, share := range []uint32{20, 40, 50, 60, 80, 100} {
			for _, batch := range []uint32{1, 2, 4, 8, 16, 32} {
				fill := float64(batch) / 32
				slow := math.Max(1, m.knee*(.5+.5*fill)/float64(share))
				us := m.slo * 1e3 / 2 * (.15 + .85*fill) * slow
				p.Points = append(p.Points, &policy.ProfilePoint{
					Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us,
					Creq: &policy.Estimate{Value: m.knee / 100 * (.5 + .5*fill)}, Mreq: &policy.Estimate{Value: .02 + .05*fill},
					L2Utilization: &policy.Estimate{Value: m.l2 * (.3 + .7*fill)}, BandwidthUtilization: &policy.Estimate{Value: m.dram * (.3 + .7*fill)},
				})
			}
		}
		s.Profiles = append(s.Profiles, p)
	}
	return s
}
