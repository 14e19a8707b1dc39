// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// leastPatience is how long a discipline may always let a request wait: SLOs of models for which nobody set one are short.
const leastPatience = time.Second

// Patience refuses what a policy lets requests of a model wait for others beyond the model's SLO and a second: such a delay is no
// trade of latency for throughput. Operators' own delays are not held to it.
func Patience(s *policy.Snapshot) DispatchCheck {
	index := policy.NewIndex(s)
	return func(d *policy.Dispatch) error {
		slo := time.Duration(index.Model(d.GetModel()).GetSloUs()) * time.Microsecond
		for _, name := range slices.Sorted(maps.Keys(d.GetParameters())) {
			wait, err := time.ParseDuration(d.GetParameters()[name])
			if err == nil && wait > max(slo, leastPatience) {
				return fmt.Errorf("parameter %s: %v is longer than the SLO of %s, %v, and than %v", name, wait, d.GetModel(), slo, leastPatience)
			}
		}
		return nil
	}
}
