// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// OnDemand reports that a diff does nothing but load and unload models that load
// on demand, with the partitions that it starts for them: those may come and go
// without being weighed.
func OnDemand(s *policy.Snapshot, d *Diff) bool {
	demanded := make(map[string]bool)
	for _, m := range s.GetModels() {
		demanded[m.GetName()] = m.GetOnDemand()
	}
	other := func(l Load) bool { return !demanded[l.Instance.GetModel()] }
	return len(d.Replace) == 0 && len(d.Stop) == 0 && len(d.Updates) == 0 && len(d.AppRoutes) == 0 &&
		!slices.ContainsFunc(d.Loads, other) && !slices.ContainsFunc(d.Unloads, other) &&
		!slices.ContainsFunc(d.Dispatch, func(c DispatchChange) bool { return !demanded[c.Model] })
}
