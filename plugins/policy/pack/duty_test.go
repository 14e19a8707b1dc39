// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy/pack"
)

// A batch of b rows takes 1 ms a row and has to be done twice in 40 ms, whatever the largest batch is.
func TestSaturatedByTheSLOAlone(t *testing.T) {
	for _, limit := range []uint32{20, 1 << 20, math.MaxInt32, math.MaxUint32} {
		job := pack.Job{Rate: 1, SLO: 40_000, Limit: limit, Latency: func(b uint32) (float64, bool) { return 1000 * float64(b), true }}
		batch, rate, ok := job.Saturated()
		require.True(t, ok)
		require.Equal(t, uint32(20), batch)
		require.InDelta(t, 1000, rate, 1e-9)
	}
}
