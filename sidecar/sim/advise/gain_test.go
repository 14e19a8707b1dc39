// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// TestTrustIsWhatWasMeasured: the constants are the least and the greatest of what was measured over what advise had answered, without mix3, and the pages cite
// those of the loads that no rule has seen.
func TestTrustIsWhatWasMeasured(t *testing.T) {
	reports, err := figure.Read("../../../results")
	require.NoError(t, err)
	for side, attached := range map[string]bool{"attached": true, "own": false} {
		var all []float64
		cited := map[string]float64{}
		for _, r := range reports {
			for _, f := range r.Figures {
				switch {
				case strings.HasPrefix(f.Name, "mix.unseen."+side+".of_advised_"):
					cited[strings.TrimPrefix(f.Name, "mix.unseen."+side+".of_advised_")] = f.Value
				case strings.HasPrefix(f.Name, "mix.mix") && strings.HasSuffix(f.Name, "."+side+".of_advised") && !strings.HasPrefix(f.Name, "mix.mix3."):
					all = append(all, f.Value)
				}
			}
		}
		trust := trustOf(attached)
		require.Len(t, all, trust.Loads, side)
		require.InDelta(t, trust.Low, slices.Min(all), .005, side)
		require.InDelta(t, trust.High, slices.Max(all), .005, side)
		require.Equal(t, map[string]float64{"least": slices.Min(all), "most": slices.Max(all)}, cited)
	}
}
