// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/plan"
)

// A model may allow as many rows as its configuration can say.
func TestValidateAModelOfAnyBatch(t *testing.T) {
	s, p := world(), answer()
	for _, m := range s.GetModels() {
		m.SloUs, m.MaxBatchSize, m.ActivationBytesPerRow = 0, 1<<31-1, 0
	}
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			in.MaxBatch, in.Rate = 0, 1
		}
	}
	began := time.Now()
	_ = plan.Validate(s, p) // how long it takes is the test
	require.Less(t, time.Since(began), 5*time.Second)
}
