// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package bound_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim/bound"
)

func published(p zoo.Profile) bound.Model {
	return bound.Model{Latency: func(b int) float64 { return p.Latency(b).Seconds() }, SLO: p.SLO.Seconds(), MaxBatch: 1000, Share: 1}
}

// TestSymphonyTable2 recomputes the analytical columns of the paper's table.
func TestSymphonyTable2(t *testing.T) {
	cases, err := zoo.Cases()
	require.NoError(t, err)
	for _, c := range cases {
		batch, rate := bound.Staggered(published(c.Profile), c.GPUs)
		require.InDelta(t, c.Staggered.Batch, batch, 0, c.Profile.Model)
		require.InDelta(t, c.Staggered.Goodput, rate, 6, c.Profile.Model)
		batch, rate = bound.Uncoordinated(published(c.Profile), c.GPUs)
		require.InDelta(t, c.Uncoordinated.Batch, batch, 0, c.Profile.Model)
		require.InDelta(t, c.Uncoordinated.Goodput, rate, 6, c.Profile.Model)
	}
}

// TestGather: the closed form for one linear model. With x real, (x-1)/r + alpha x + beta = SLO and r (alpha x + beta)/x = n.
func TestGather(t *testing.T) {
	cases, err := zoo.Cases()
	require.NoError(t, err)
	resnet := published(cases[0].Profile)
	goodput := bound.Gather([]bound.Model{resnet}, 8)
	x := 0.0
	for lo, hi := 1., 1000.; hi-lo > 1e-9; { // the batch at which both equations hold
		x = (lo + hi) / 2
		l := .001053*x + .005072
		if (x-1)*l/(8*x)+l <= .025 {
			lo = x
		} else {
			hi = x
		}
	}
	require.InDelta(t, 8*x/(.001053*x+.005072), goodput, 1)
	require.InDelta(t, 5875, goodput, 30)

	var eight []bound.Model
	for range 8 {
		eight = append(eight, resnet)
	}
	require.InDelta(t, 4710, bound.Gather(eight, 8), 30)
	require.InDelta(t, 625, bound.Gather(eight, 2), 5)
	require.Zero(t, bound.Gather(nil, 8))
}

// TestGatherZoo: the mixes of all published profiles at equal rates.
func TestGatherZoo(t *testing.T) {
	for gpu, want := range map[string]float64{zoo.A100: 19150, zoo.GTX1080Ti: 8020} {
		profiles, err := zoo.Profiles(gpu)
		require.NoError(t, err)
		var models []bound.Model
		for _, p := range profiles {
			models = append(models, published(p))
		}
		require.InEpsilon(t, want, bound.Gather(models, 64), .02, gpu)
	}
}

func TestNothingFits(t *testing.T) {
	m := bound.Model{Latency: func(int) float64 { return 2 }, SLO: 1, MaxBatch: 8}
	batch, rate := bound.Staggered(m, 4)
	require.Zero(t, batch)
	require.Zero(t, rate)
}
