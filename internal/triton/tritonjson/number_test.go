// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson_test

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/triton/tritonjson"
)

// The texts are a real server's.
func TestAppendDouble(t *testing.T) {
	for want, f := range map[string]float64{
		"0.0": 0, "-0.0": math.Copysign(0, -1), "1.0": 1, "-2.5": -2.5, "0.1": 0.1, "NaN": math.NaN(), "Infinity": math.Inf(1),
		"-Infinity": math.Inf(-1), "1.0000000150474662e30": float64(float32(1e30)), "0.10000000149011612": float64(float32(0.1)),
		"1.0000000200408774e21": float64(float32(1e21)), "100000002004087730000.0": float64(float32(1e20)),
		"123456792.0": float64(float32(123456789)), "99999998430674950.0": float64(float32(1e17)),
		"0.000009999999747378752": float64(float32(1e-5)), "1.0000000116860974e-7": float64(float32(1e-7)), "1e300": 1e300,
		"1e-300": 1e-300, "1e21": 1e21, "100000000000000000000.0": 1e20, "12345678901234568000.0": 12345678901234567890,
		"0.00001": 1e-5, "1e-7": 1e-7, "5e-324": 5e-324, "1.7976931348623157e308": math.MaxFloat64,
		"2.2250738585072014e-308": 2.2250738585072014e-308, "9007199254740992.0": 1 << 53,
	} {
		require.Equal(t, want, string(tritonjson.AppendDouble(nil, f)))
	}
}

func TestDoublesReadBackTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return
		}
		text := string(tritonjson.AppendDouble(nil, f))
		back, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(f), math.Float64bits(back), text)

		doc, err := tritonjson.Parse([]byte("[" + text + "]"))
		require.NoError(t, err)
		for v := range doc.Root().Elements() {
			got, err := v.AsDouble()
			require.NoError(t, err)
			require.Equal(t, math.Float64bits(f), math.Float64bits(got), text)
		}
	})
}

// TestDoublesOfTheServer compares with what Triton 2.51 wrote for three thousand doubles: bits, space, text.
func TestDoublesOfTheServer(t *testing.T) {
	file, err := os.ReadFile("testdata/doubles-triton-2.51.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(file)) {
		word, want, _ := strings.Cut(strings.TrimSpace(line), " ")
		bits, err := strconv.ParseUint(word, 16, 64)
		require.NoError(t, err)
		require.Equal(t, want, string(tritonjson.AppendDouble(nil, math.Float64frombits(bits))))
	}
}
