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

// An event of another day has its date.
func TestEventsOfAnotherDay(t *testing.T) {
	s := &top.State{Time: at(30), Events: []api.Event{
		{ID: 1, Time: at(30).AddDate(0, 0, -1), Kind: "started"}, {ID: 2, Time: at(2), Kind: "plan_applied"}, {ID: 3, Time: at(30).AddDate(-1, 0, 0), Kind: "stopping"},
	}}
	var out bytes.Buffer
	require.NoError(t, output.Print(&out, "table", s, func(table *output.Table) { top.Draw(table, s) }))
	require.Regexp(t, `(?m)^11-22 12:00  started`, out.String())
	require.Regexp(t, `(?m)^2025-11-23   stopping`, out.String())
	require.Regexp(t, `(?m)^12:00:02     plan_applied`, out.String())
}

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
