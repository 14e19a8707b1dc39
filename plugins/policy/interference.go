// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

// Load is what an execution takes of the parts of a GPU that its partitions share, as fractions of the GPU.
type Load struct{ L2, Bandwidth float64 }

// Load of a batch at a share by the profile; false where it does not know both.
func (p *Profile) Load(batch, share uint32) (Load, bool) {
	l2, a := p.L2(batch, share)
	bandwidth, b := p.Bandwidth(batch, share)
	return Load{l2, bandwidth}, a && b
}

// Slowdown is by what factor an execution takes longer because another one runs on another partition of its GPU: gpulet's linear model
// (section 4.4), never below 1. Without coefficients it is 1.
//
// Of several co-runners the one that slows most counts, which is what gpulet's scheduler does with more than two partitions. The factor of an
// execution is that of what runs when it starts, and holds to its end, whatever starts or ends meanwhile. This is what the simulator, minitriton and
// the emulating model behind a real tritonserver (internal/pymodels/emulate/model.py, the same formula in Python) do; testdata/slowdown.csv holds all
// three to it.
func (m *Interference) Slowdown(self, other Load) float64 {
	if m == nil {
		return 1
	}
	return max(1, m.GetL2Self()*self.L2+m.GetL2Other()*other.L2+m.GetBandwidthSelf()*self.Bandwidth+m.GetBandwidthOther()*other.Bandwidth+m.GetConstant())
}

// GpuletInterference are the coefficients that gpulet's authors published with their artifact, for a 2080 Ti. They stand for a type of GPU until
// it has its own, and emulated GPUs behave by them.
func GpuletInterference(gpuType string) *Interference {
	return &Interference{GpuType: gpuType, L2Self: .1129, L2Other: .7160, BandwidthSelf: .3549, BandwidthOther: .0882, Constant: .8954}
}
