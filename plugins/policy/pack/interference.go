// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import "github.com/conch-serving/conch/plugins/policy"

// Interference of a type of GPU; nil where the snapshot has no coefficients for it.
func (f *Floor) Interference(gpuType string) *policy.Interference {
	for _, m := range f.Snapshot().GetInterference() {
		if m.GetGpuType() == gpuType {
			return m
		}
	}
	return nil
}
