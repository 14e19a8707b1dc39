// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"math"
)

// Search finds the highest rate that a system holds.
type Search struct {
	// Start is the first rate tried. The search doubles or halves it until it has a rate that holds and one that does not, and then
	// halves the ratio between the two.
	Start float64
	// Step is the factor of the first phase; 0 means 2.
	Step float64
	// Resolution ends the search once the two rates differ by less than this fraction; 0 means 0.05.
	Resolution float64
	// Least is the rate below which the search gives up; 0 means a hundredth of Start.
	Least float64
}

// Highest calls holds with one rate after the other and returns the highest that held, or 0 if none above Least did.
func (s Search) Highest(ctx context.Context, holds func(ctx context.Context, rate float64) (bool, error)) (float64, error) {
	step, resolution, least := s.Step, s.Resolution, s.Least
	if step <= 1 {
		step = 2
	}
	if resolution <= 0 {
		resolution = 0.05
	}
	if least <= 0 {
		least = s.Start / 100
	}
	low, high := 0.0, math.Inf(1)
	for rate := s.Start; ; {
		ok, err := holds(ctx, rate)
		if err != nil {
			return 0, err
		}
		if ok {
			low = rate
		} else {
			high = rate
		}
		switch {
		case math.IsInf(high, 1):
			rate = low * step
		case low == 0 && high/step < least:
			return 0, nil
		case low == 0:
			rate = high / step
		case high/low-1 <= resolution:
			return low, nil
		default:
			rate = math.Sqrt(low * high)
		}
	}
}
