// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import "time"

// Backoff says how long to wait before a dead server is started again: Min,
// 2 Min, 4 Min, ... Max, and Min again after a life of at least Stable. Zero
// fields take 100ms, 30s and 30s.
type Backoff struct{ Min, Max, Stable time.Duration }

func (b Backoff) withDefaults() Backoff {
	if b.Min <= 0 {
		b.Min = 100 * time.Millisecond
	}
	if b.Max <= 0 {
		b.Max = 30 * time.Second
	}
	if b.Stable <= 0 {
		b.Stable = 30 * time.Second
	}
	return b
}

// delay is the wait after failures short lives in a row.
func (b Backoff) delay(failures int) time.Duration {
	d := b.Min
	for range failures {
		if d >= b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return min(d, b.Max)
}
