// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/output"
	"github.com/conch-serving/conch/tritonctl/top"
)

// CPUs, of which no share is given, are as busy as their partition; a GPU that no plan may use is not free.
func TestCPUsAndGPUsThatAreUnavailable(t *testing.T) {
	s := &top.State{Time: at(0), GPUs: []api.GPU{
		{ID: "cpu", Type: "CPU", Partitions: []api.Partition{{ID: "cpu.0", Up: true, BusyShare: .7}}},
		{ID: "gpu9", Type: "T4", Unavailable: "its node is cordoned"},
	}}
	var out bytes.Buffer
	require.NoError(t, output.Print(&out, "table", s, func(table *output.Table) { top.Draw(table, s) }))
	require.Regexp(t, `(?m)^cpu +CPU +70% +in use`, out.String())
	require.Regexp(t, `(?m)^gpu9 +T4 +0% +unavailable`, out.String())
	require.NotContains(t, out.String(), "free")
}
