// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import "time"

// Backoff says how long to wait before something is tried again: Min after the
// first failure, twice as long after each further one in a row, Max at most. A
// server that has lived for Stable has not failed. Zero fields take 1 second, 1
// minute and 30 seconds.
type Backoff struct{ Min, Max, Stable time.Duration }

func (b Backoff) withDefaults() Backoff {
	if b.Min <= 0 {
		b.Min = time.Second
	}
	if b.Max <= 0 {
		b.Max = time.Minute
	}
	if b.Stable <= 0 {
		b.Stable = 30 * time.Second
	}
	return b
}

// delay is the wait after as many failures in a row.
func (b Backoff) delay(failures int) time.Duration {
	d := b.Min
	for range failures - 1 {
		if d >= b.Max/2 {
			return b.Max
		}
		d *= 2
	}
	return min(d, b.Max)
}
