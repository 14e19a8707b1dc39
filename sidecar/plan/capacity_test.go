// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
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

// A step may take what its pipeline leaves it: batches of a model that only pipelines ask for are not bounded by the SLO of its own.
func TestValidateRatesOfSteps(t *testing.T) {
	s, p := world(), answer()
	in := p.Partitions[0].Instances[0]
	in.Rate = 160
	require.NotEmpty(t, plan.Validate(s, p), "beyond the profile, within its own SLO")
	s.Pipelines = []*policy.Pipeline{{Name: "pipeline", SloUs: 10 * s.Models[0].GetSloUs(), Rate: 160, Steps: []*policy.PipelineStep{{Model: in.GetModel()}}}}
	require.Empty(t, plan.Validate(s, p))
	s.Pipelines[0].Rate = 0
	require.NotEmpty(t, plan.Validate(s, p), "a pipeline that nobody asks for")
}
