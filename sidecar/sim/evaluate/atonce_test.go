// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// TestEvaluateSeveralBatchesAtOnce: one partition that runs three batches at once serves what three partitions serve, and is one partition of the outcome.
func TestEvaluateSeveralBatchesAtOnce(t *testing.T) {
	three := world(3, 1, 1200)
	want, err := evaluate.New(three, generate(t, three, 2*time.Second)).Evaluate(t.Context(), everywhere(three, 3, "m0"))
	require.NoError(t, err)
	one := world(1, 1, 1200)
	one.Nodes[0].Gpus[0].Executions = 3
	traffic := generate(t, one, 2*time.Second)
	asks := everywhere(one, 1, "m0")
	asks.Partitions[0].Instances[0].Rate = 1200 // one batch at a time is 760 at most
	before := proto.CloneOf(one)
	got, err := evaluate.New(one, traffic).Evaluate(t.Context(), asks)
	require.NoError(t, err)
	require.Empty(t, got[0].GetViolations())
	require.Len(t, got[0].GetPartitions(), 1)
	require.Equal(t, want[0].GetGoodput(), got[0].GetGoodput())
	mean := 0.0
	for _, p := range want[0].GetPartitions() {
		mean += p.GetBusyShare() / 3
	}
	require.InDelta(t, mean, got[0].GetPartitions()[0].GetBusyShare(), 1e-9)
	require.EqualValues(t, 1, got[0].GetGpus())
	require.True(t, proto.Equal(before, one), "the snapshot is as it was")
}
