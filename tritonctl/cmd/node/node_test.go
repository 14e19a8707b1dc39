// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// TestNodes: each reason once, also one that is part of another; processors are no GPU, and what runs on them counts.
func TestNodes(t *testing.T) {
	all := nodes([]api.GPU{
		{ID: "g0", Node: "n", Type: "T4", Unavailable: "cordoned"}, {ID: "g1", Node: "n", Type: "T4", Cordon: &api.Cordon{}}, {ID: "g2", Node: "n", Type: "T4", Cordon: &api.Cordon{}},
		{ID: "g3", Node: "n", Type: "L4"}, {ID: "cpu", Node: "n", Type: "Xeon", Partitions: []api.Partition{{Up: true, Models: []string{"a"}}}},
		{ID: "g4", Node: "m", Type: "T4"},
	})
	for i := range all {
		all[i].states = nil
	}
	require.Equal(t, []Node{
		{
			Name: "n", GPUs: []string{"g0", "g1", "g2", "g3"}, Available: []string{"g3"}, Types: []string{"T4", "L4"},
			Partitions: 1, Up: 1, Models: []string{"a"}, State: "unavailable: cordoned, cordoned",
		},
		{Name: "m", GPUs: []string{"g4"}, Available: []string{"g4"}, Types: []string{"T4"}, Models: []string{}, State: "in use"},
	}, all)
}
