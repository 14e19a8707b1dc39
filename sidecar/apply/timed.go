// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// timing is a revision of a model on a share of a GPU type.
type timing struct {
	model, revision, gpuType string
	share                    uint32
}

// profiled reports that a model has a measured profile for a GPU type and share,
// or that these files were measured there before: a server that comes back serves
// at once.
func (l *loop) profiled(a decide.Action, spec driver.Spec) bool {
	if l.timed[timing{a.Model, a.Revision, spec.GPU.GetType(), spec.Partition.GetThreadPercentage()}] {
		return true
	}
	for _, p := range l.desired.Snapshot.GetProfiles() {
		source := p.GetSource()
		if p.GetModel() != a.Model || p.GetGpuType() != spec.GPU.GetType() || !p.GetUsable() ||
			source != policy.ProfileSource_PROFILE_SOURCE_OBSERVED && source != policy.ProfileSource_PROFILE_SOURCE_CALIBRATED {
			continue
		}
		for _, point := range p.GetPoints() {
			if point.GetThreadPercentage() == spec.Partition.GetThreadPercentage() {
				return true
			}
		}
	}
	return false
}
