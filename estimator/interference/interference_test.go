// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package interference_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/interference"
)

func TestTheCoefficientsComeBack(t *testing.T) {
	var pairs []interference.Pair
	for i := range 100 {
		p := interference.Pair{L2Self: float64(i%7) / 10, L2Other: float64(i%5) / 8, BandwidthSelf: float64(i%11) / 20, BandwidthOther: float64(i%3) / 5}
		p.Slowdown = .1*p.L2Self + .7*p.L2Other + .3*p.BandwidthSelf + .1*p.BandwidthOther + 1
		pairs = append(pairs, p)
	}
	f, err := interference.Of("T4", pairs)
	require.NoError(t, err)
	for name, c := range map[string][2]float64{"l2Self": {.1, f.L2Self}, "l2Other": {.7, f.L2Other}, "bandwidthSelf": {.3, f.BandwidthSelf}, "bandwidthOther": {.1, f.BandwidthOther}, "constant": {1, f.Constant}} {
		require.InDelta(t, c[0], c[1], 1e-9, name)
	}
	require.Less(t, f.Error[2], 1e-9)
	require.Equal(t, 100, f.Pairs+f.Judged)
}

// Published pairs of four models on a V100. The paper reports 90% of its own (on a 2080 Ti) within 10.26% and 95% within 13.98%.
func TestPublishedPairs(t *testing.T) {
	file, err := os.Open("testdata/v100_pairs.csv")
	require.NoError(t, err)
	defer file.Close() //nolint:errcheck // it was only read
	all, err := interference.Read(file)
	require.NoError(t, err)
	f, err := interference.Of("V100", all["V100"])
	require.NoError(t, err)
	t.Logf("%d fitted, %d judged: median %.2f%%, 90%% within %.2f%%, 95%% within %.2f%%; without a model %.2f%%, %.2f%%, %.2f%%", f.Pairs, f.Judged,
		100*f.Error[0], 100*f.Error[1], 100*f.Error[2], 100*f.ErrorOfNone[0], 100*f.ErrorOfNone[1], 100*f.ErrorOfNone[2])
	require.Less(t, f.Error[1], f.ErrorOfNone[1], "it tells more than assuming no interference")
	require.Less(t, f.Error[0], .1)
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	const header = "gpu_type,l2_self,l2_other,bandwidth_self,bandwidth_other,slowdown\n"
	for text, want := range map[string]string{
		"":                          "no header",
		"gpu_type,slowdown\n":       "column l2_self is missing",
		header + "T4,1,2,x,1,1":     "l2_other 2 is no fraction",
		header + "T4,.1,.2,x,.1,1":  `bandwidth_self "x" is no number`,
		header + "T4,.1,.2,.1,.1,0": "a slowdown of 0",
	} {
		_, err := interference.Read(strings.NewReader(text))
		require.ErrorIs(t, err, interference.ErrData)
		require.ErrorContains(t, err, want)
	}
	_, err := interference.Of("T4", make([]interference.Pair, 5))
	require.ErrorContains(t, err, "5 are too few")
	_, err = interference.Of("T4", make([]interference.Pair, 50))
	require.ErrorContains(t, err, "do not tell the coefficients apart")
}
