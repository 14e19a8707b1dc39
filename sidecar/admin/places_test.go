// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/control"
)

// A partition says where it is, also where that is no GPU.
func TestAPartitionOnCPUs(t *testing.T) {
	l := control.Look{Nodes: []*policy.Node{{Name: "n", Cpu: &policy.CPU{Type: "Xeon"}}}}
	l.Plan.Plan = &policy.Plan{Partitions: []*policy.Partition{{Id: "n.cpu", Node: "n", ThreadPercentage: 100}}}
	all, err := admin.Of(looked{look: l}, nil, nil).Partitions(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "cpu", all[0].GPU)
	gpus, err := admin.Of(looked{look: l}, nil, nil).GPUs(t.Context())
	require.NoError(t, err)
	require.Equal(t, "cpu", gpus[0].ID)
	require.Equal(t, all, gpus[0].Partitions)
}
