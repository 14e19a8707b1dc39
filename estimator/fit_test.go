// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/estimator/published"
)

func TestALineGoesThroughEveryBatchSize(t *testing.T) {
	batches := []float64{1, 2, 4, 8}
	require.InDeltaSlice(t, []float64{5, 7, 11, 19}, estimator.Line(batches, []float64{5, 7, 11, 19}), 1e-9, "a line stays as it is")
	// 4, 4, 4, 4, 5, 6, 7, 8 at 1 to 8: slope 25/42 about the means 4.5 and 5.25.
	slope := 25.0 / 42
	require.InDeltaSlice(t, []float64{5.25 - 3.5*slope, 5.25 - 2.5*slope, 5.25 - .5*slope, 5.25 + 3.5*slope}, estimator.Line(batches, []float64{4, 4, 4, 8}), 1e-9)
	low := estimator.Line([]float64{1, 32}, []float64{1, 1000})
	require.Greater(t, low[0], 0.0, "a time is positive")
	require.Greater(t, estimator.Line([]float64{1, 2, 32}, []float64{1, 1, 1000})[0], 0.0)
}

// A fit to lines finds the factors that made them again, from samples of which nothing but lines is known.
func TestAFitToLinesFindsWhatMadeThem(t *testing.T) {
	all, err := published.Zoo(os.DirFS("data"), "A100", lower.TensorFlow(), true)
	require.NoError(t, err)
	d := device(t, "A100", "tensorflow")
	truth := published.ZooStart(lower.TensorFlow())
	truth.Launch, truth.Pointwise, truth.Direct = 22e-6, .7, 6
	for i, seconds := range estimator.Predict(&d, all, truth) {
		all[i].Seconds = seconds
	}
	found, err := estimator.Fit(&d, all, published.ZooStart(lower.TensorFlow()), 0)
	require.NoError(t, err)
	require.Less(t, estimator.Median(estimator.Errors(&d, all, found)), .03)
	require.InEpsilon(t, truth.Launch, found.Launch, .1)
	for i := range all {
		all[i].Line = false
	}
	require.Greater(t, estimator.Median(estimator.Errors(&d, all, found)), .03, "its curves are no lines")
}
