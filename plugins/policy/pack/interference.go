// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import "github.com/conch-serving/conch/plugins/policy"

// Load is what an execution takes of the parts of a GPU that co-runners share, as fractions of the GPU.
type Load struct{ L2, Bandwidth float64 }

// LoadOf a batch at a share by the profile; false where it does not say.
func LoadOf(p *policy.Profile, batch, share uint32) (Load, bool) {
	l2, a := p.L2(batch, share)
	bandwidth, b := p.Bandwidth(batch, share)
	return Load{l2, bandwidth}, a && b
}

// Slowdown is by what factor a co-runner slows an execution: gpulet's linear model (section 4.4), never below 1. Without coefficients it is 1.
func Slowdown(m *policy.Interference, self, other Load) float64 {
	if m == nil {
		return 1
	}
	return max(1, m.GetL2Self()*self.L2+m.GetL2Other()*other.L2+m.GetBandwidthSelf()*self.Bandwidth+m.GetBandwidthOther()*other.Bandwidth+m.GetConstant())
}

// Interference of a type of GPU; nil where the snapshot has no coefficients for it.
func (f *Floor) Interference(gpuType string) *policy.Interference {
	for _, m := range f.Snapshot().GetInterference() {
		if m.GetGpuType() == gpuType {
			return m
		}
	}
	return nil
}
