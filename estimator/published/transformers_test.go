// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package published_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/estimator/published"
)

// A group is judged by the bound that the other groups of its cell ask for, never by its own.
func TestABoundIsJudgedByWhatItDidNotSee(t *testing.T) {
	deviations := []float64{.1, .1, .2, .2, .9, .9}
	one := make([]string, 6)
	groups := []string{"a", "a", "b", "b", "c", "c"}
	within, width := published.Coverage(deviations, one, groups)
	require.InDelta(t, 4./6, within, 1e-9, "c is not within what a and b ask for")
	require.InDelta(t, .9, width, 1e-9)
	within, width = published.Coverage(deviations, []string{"x", "x", "x", "x", "y", "y"}, groups)
	require.InDelta(t, 4./6, within, 1e-9, "nothing was measured of y but c")
	require.Greater(t, width, .1)
}

// Models that judge are none of those that were fitted.
func TestUnseenModelsWereNotFitted(t *testing.T) {
	fsys := os.DirFS("../data")
	unseen, err := published.Unseen(fsys)
	require.NoError(t, err)
	require.Len(t, unseen, 72)
	fitted, err := published.Shares(fsys, "v100", lower.Eager())
	require.NoError(t, err)
	names := map[string]bool{}
	for _, s := range fitted {
		names[s.Model] = true
	}
	for _, s := range unseen {
		require.False(t, names[s.Model], s.Model)
		require.InDelta(t, 1, s.Share, 0)
	}
}
