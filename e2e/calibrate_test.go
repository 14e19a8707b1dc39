// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// An order to calibrate is carried out on a real tritonserver beside the one that serves: micro-models until its limit, and a model of the repository.
func TestCalibrateInAScratchPartition(t *testing.T) {
	c := serve(t, rig.ConchOptions{Repository: repository(t, "cnn"), GPUs: 1, GPUType: "this-machine"})
	a := admin(t, c)
	order := api.CalibrateRequest{Python: true, Disturbance: .5, LimitSeconds: 1}
	last := -1
	for range 2 {
		done := -1
		_, err := a.Calibrate(t.Context(), order, func(p api.CalibrateProgress) { done = p.Done })
		require.ErrorContains(t, err, "time is up; run it again to go on")
		require.Greater(t, done, last, "the second order goes on where the first was ended")
		last = done
	}
	got, err := a.Calibrate(t.Context(), api.CalibrateRequest{Model: "cnn", Disturbance: .5}, func(api.CalibrateProgress) {})
	require.NoError(t, err)
	require.Len(t, got.Shares, 1)
	require.Len(t, got.Shares[0].Batches, 5)
	m, err := a.Model(t.Context(), "cnn")
	require.NoError(t, err)
	require.Equal(t, "calibrated", m.Profiles[0].Source)
	partitions, err := a.Partitions(t.Context())
	require.NoError(t, err)
	require.Len(t, partitions, 1, "a scratch partition is none of the plan's")
}
