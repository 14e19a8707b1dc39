// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
)

func TestPace(t *testing.T) {
	var p forecast.Pace
	require.Equal(t, 3*time.Millisecond, p.Or(3*time.Millisecond), "what is known before")
	for range 300 {
		p.Add(8 * time.Millisecond)
	}
	require.InDelta(t, 8e6, float64(p.Or(0)), 1e4)
	for range 300 {
		p.Add(20 * time.Millisecond)
	}
	require.InDelta(t, 20e6, float64(p.Or(0)), 1e4)
}

func TestReserve(t *testing.T) {
	require.Zero(t, forecast.Reserve(0, 10, 100), "nothing follows")
	require.EqualValues(t, 4+9, forecast.Reserve(4, 10, 100), "its time, and a quarter of two fifths of 90")
	require.EqualValues(t, 4, forecast.Reserve(4, 10, 10), "nothing is to spare")
	require.EqualValues(t, 4, forecast.Reserve(4, 10, 3), "less than nothing")
}
