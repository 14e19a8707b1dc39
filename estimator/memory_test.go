// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// 1, 2, 4, ... MiB until it is enough, and whole GiB from there on.
func TestAnArenaGrowsByDoubling(t *testing.T) {
	const mib = 1 << 20
	for bytes, want := range map[float64]float64{
		0: 0, 1: mib, mib: mib, mib + 1: 3 * mib, 20 * mib: 31 * mib, 31 * mib: 31 * mib, 1023 * mib: 1023 * mib, 1024 * mib: 2047 * mib, 5000 * mib: (1023 + 4*1024) * mib,
	} {
		require.InDelta(t, want, arena(bytes), 0, "%v bytes", bytes)
	}
}
