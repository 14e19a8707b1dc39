// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
)

// TestClusterIsPlannedWhole: the snapshot that is measured meets what conch's beginnings need, both policies use every GPU, and nothing is left out for want of time.
func TestClusterIsPlannedWhole(t *testing.T) {
	var nodes []*policy.Node
	for i := range 5 {
		n := &policy.Node{Name: fmt.Sprintf("node-%d", i)}
		for k := range 4 {
			n.Gpus = append(n.Gpus, &policy.GPU{Id: fmt.Sprintf("node-%d.gpu-%d", i, k), Type: "A100-SXM4-80GB", Index: uint32(k), MemoryBytes: 80 << 30})
		}
		nodes = append(nodes, n)
	}
	s := clusterSnapshot(nodes, 10)
	for _, need := range []string{policy.NeedProfiles, policy.NeedRequirements, policy.NeedInterference, policy.NeedUtilizations} {
		require.Empty(t, (&policy.Description{Needs: []string{need}}).Unmet(s))
	}
	for _, name := range []string{"conch", "symphony"} {
		p, err := planBy(t.Context(), name, s)
		require.NoError(t, err)
		require.Empty(t, conformance.Check(s, p))
		used := map[string]bool{}
		for _, part := range p.GetPartitions() {
			used[part.GPU()] = true
		}
		require.Len(t, used, 20)
		require.NotContains(t, fmt.Sprint(p.GetReasons()), "the search was limited")
	}
	_, err := planBy(t.Context(), "none", s)
	require.ErrorContains(t, err, "there is no policy none")
}
