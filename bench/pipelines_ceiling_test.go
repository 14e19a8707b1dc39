// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCeilingOfChains: where batches of 32 fit, the GPUs over what a row of one takes; where only single rows do, those.
func TestCeilingOfChains(t *testing.T) {
	loads := map[string]pipelineLoad{}
	for _, l := range namedPipelines() {
		loads[l.name] = l
	}
	row := (.2*32 + 1 + 1.05*32 + 5.07 + .1*32 + .5) / 32
	require.InEpsilon(t, 4*1e3/row/.99, loads["chain"].ceiling(), 1e-3)
	urgent := loads["urgent_chain"]
	require.Less(t, urgent.ceiling(), loads["chain"].ceiling())
	urgent.scenario.Pipelines[0].SLO = 8_000_000 // ns; one row takes 7.92 ms in all
	require.InEpsilon(t, 4*1e3/7.92/.99, urgent.ceiling(), .02)
	require.Equal(t, [][]int{{0, 1, 3}, {0, 2, 3}}, paths(loads["diamond"].scenario.Pipelines[0].Steps))
}
