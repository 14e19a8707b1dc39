// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// TestEvaluatedPlans: what evaluate.seconds is measured with are as many different good plans, on as much traffic, as the figure says.
func TestEvaluatedPlans(t *testing.T) {
	s, plans := evaluatedWorld(1), evaluatedPlans(rand.New(rand.NewPCG(1, 0)))
	require.InDelta(t, evaluatedRate*evaluatedSeconds, s.GetTraffic().GetRequests(), 1)
	require.InDelta(t, evaluatedSeconds, s.GetTraffic().GetSeconds(), 1e-9)
	require.Len(t, plans, policy.MaxEvaluatePlans)
	for i, p := range plans {
		require.Empty(t, plan.Validate(s, p))
		require.Len(t, p.GetPartitions(), evaluatedPartitions)
		placed := map[string]bool{}
		for _, part := range p.GetPartitions() {
			for _, in := range part.GetInstances() {
				placed[in.GetModel()] = true
			}
		}
		require.Len(t, placed, evaluatedModels)
		for _, other := range plans[:i] {
			require.False(t, proto.Equal(p, other))
		}
	}
}
