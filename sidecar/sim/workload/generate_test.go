// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// collect reads a stream up to a moment.
func collect(t testing.TB, s workload.Stream, until time.Duration) []workload.Arrival {
	t.Helper()
	var all []workload.Arrival
	for a := (workload.Arrival{}); s.Next(&a) && a.At < until; {
		if len(all) > 0 {
			require.GreaterOrEqual(t, a.At, all[len(all)-1].At)
		}
		all = append(all, a)
	}
	require.NoError(t, workload.Err(s))
	return all
}

func renewal(t testing.TB, shape float64, c workload.Curve, name string) workload.Stream {
	t.Helper()
	s, err := workload.Renewal{Shape: shape, Curve: c, Random: workload.Seed(1, "arrivals", name)}.Stream()
	require.NoError(t, err)
	return s
}

// TestGammaHasItsMeanAndBurstiness: the mean gap is 1/rate, the squared coefficient of variation 1/shape.
func TestGammaHasItsMeanAndBurstiness(t *testing.T) {
	for _, shape := range []float64{.05, .3, 1, 4} {
		t.Run(fmt.Sprint(shape), func(t *testing.T) {
			all := collect(t, renewal(t, shape, workload.Constant(1000), "m"), 400*time.Second)
			n, sum, squares, last := 0., 0., 0., 0.
			for _, a := range all {
				gap := a.At.Seconds() - last
				last = a.At.Seconds()
				n, sum, squares = n+1, sum+gap, squares+gap*gap
			}
			mean := sum / n
			require.InEpsilon(t, 1e-3, mean, 5*math.Sqrt(1/shape/n))
			require.InEpsilon(t, 1/shape, squares/n/(mean*mean)-1, .1)
		})
	}
}

// TestRateFollowsTheCurve counts arrivals in each piece, bursty ones too.
func TestRateFollowsTheCurve(t *testing.T) {
	c, err := workload.Steps(workload.Step{From: 0, Rate: 100}, workload.Step{From: 100 * time.Second, Rate: 0},
		workload.Step{From: 150 * time.Second, Rate: 1000}, workload.Step{From: 200 * time.Second, Rate: 0})
	require.NoError(t, err)
	require.InDelta(t, (100*100+50*1000)/200., c.Mean(200*time.Second), 1e-9)
	for _, shape := range []float64{.5, 1} {
		var counts [3]float64
		for _, a := range collect(t, renewal(t, shape, c, "m"), time.Hour) {
			switch {
			case a.At < 100*time.Second:
				counts[0]++
			case a.At < 150*time.Second:
				counts[1]++
			case a.At < 200*time.Second:
				counts[2]++
			default:
				t.Fatalf("an arrival at %v, where the rate is 0", a.At)
			}
		}
		require.InEpsilon(t, 10000, counts[0], .1)
		require.Zero(t, counts[1])
		require.InEpsilon(t, 50000, counts[2], .05)
	}
}

// TestModelsDoNotDisturbEachOther: a model's arrivals depend on the seed and its own name alone.
func TestModelsDoNotDisturbEachOther(t *testing.T) {
	alone := collect(t, renewal(t, 1, workload.Constant(100), "a"), time.Second)
	require.Equal(t, alone, collect(t, renewal(t, 1, workload.Constant(100), "a"), time.Second))
	require.NotEqual(t, alone, collect(t, renewal(t, 1, workload.Constant(100), "b"), time.Second))
}

func TestDiurnal(t *testing.T) {
	d := workload.Diurnal{Mean: 100, Swing: .8, Period: 24 * time.Hour}
	c, err := d.Curve(48*time.Hour, workload.Seed(1, "spikes", "m"))
	require.NoError(t, err)
	require.InEpsilon(t, 100, c.Mean(24*time.Hour), 1e-9)
	require.InDelta(t, 180, c.At(6*time.Hour), 1)
	require.InDelta(t, 20, c.At(42*time.Hour), 1)

	d.Swing, d.Spikes, d.Height, d.Length = 0, 10, 5, time.Minute
	c, err = d.Curve(240*time.Hour, workload.Seed(1, "spikes", "m"))
	require.NoError(t, err)
	require.InDelta(t, 100*(1+4*10/1440.), c.Mean(240*time.Hour), 1)
	again, err := d.Curve(240*time.Hour, workload.Seed(1, "spikes", "m"))
	require.NoError(t, err)
	require.Equal(t, c, again)
	require.InEpsilon(t, 2*c.Mean(time.Hour), c.Scaled(2).Mean(time.Hour), 1e-12)
}

func TestZipf(t *testing.T) {
	rates := workload.Zipf(3, 1, 11)
	require.InDeltaSlice(t, []float64{6, 3, 2}, rates, 1e-9)
	require.InDeltaSlice(t, []float64{1, 1}, workload.Zipf(2, 0, 2), 1e-9)
}

func TestRefusals(t *testing.T) {
	for _, r := range []workload.Renewal{
		{Shape: -1, Curve: workload.Constant(1)}, {Shape: math.NaN(), Curve: workload.Constant(1)}, {Curve: workload.Constant(-1)}, {},
	} {
		_, err := r.Stream()
		require.ErrorContains(t, err, "workload: ")
	}
	_, err := workload.Steps(workload.Step{From: time.Second, Rate: 1}, workload.Step{From: time.Second, Rate: 2})
	require.ErrorContains(t, err, "step 2 begins at 1s")
	for _, d := range []workload.Diurnal{{Mean: 1}, {Period: time.Hour, Swing: 2}, {Period: time.Hour, Spikes: 1}, {Period: time.Microsecond}} {
		_, err := d.Curve(time.Hour, workload.Seed(1, "spikes", "m"))
		require.ErrorContains(t, err, "diurnal load", "%+v", d)
	}
}

func TestPoissonDoesNotAllocate(t *testing.T) {
	s := renewal(t, 1, workload.Constant(100), "a")
	var a workload.Arrival
	require.Zero(t, testing.AllocsPerRun(1000, func() { s.Next(&a) }))
}
