// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseBenchmark(t *testing.T) {
	cases, err := parseBenchmark([]byte(`goos: linux
BenchmarkCore/24x10         	  300000	       812.5 ns/op	        92.10 %good	   1230769 requests/s	       0 B/op	       0 allocs/op
BenchmarkCore/24x10         	  300000	       812.5 ns/op	        92.10 %good	   1200000 requests/s	       0 B/op	       1 allocs/op
BenchmarkCore/24x100        	  300000	       912.5 ns/op	   1000000 requests/s	       0 B/op	       0 allocs/op
PASS
`))
	require.NoError(t, err)
	require.Len(t, cases, 2)
	require.Equal(t, "24x10", cases[0].name)
	require.Equal(t, []float64{1230769, 1200000}, cases[0].values["requests/s"])
	require.Equal(t, []float64{0, 1}, cases[0].values["allocs/op"])
	require.Equal(t, []float64{1000000}, cases[1].values["requests/s"])

	_, err = parseBenchmark([]byte("PASS\n"))
	require.ErrorContains(t, err, "no results")
	_, err = parseBenchmark([]byte("BenchmarkCore/x 1 fast ns/op\n"))
	require.ErrorContains(t, err, "fast")
}
