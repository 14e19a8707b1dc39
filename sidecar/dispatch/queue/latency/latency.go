// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package latency has the two quantities that the queue and its disciplines
// reckon with: moments on the caller's clock, and how long batches take.
package latency

import (
	"math"
	"time"
)

// Time is a moment or a duration in nanoseconds on the caller's clock. The
// origin does not matter as long as one Scheduler sees one clock.
type Time int64

// Never is later than every moment: the deadline of a request without one, and
// what Next returns when nothing is due.
const Never Time = math.MaxInt64

// Duration converts a span of Time.
func (t Time) Duration() time.Duration { return time.Duration(t) }

// Table is a latency profile: Table[b] is l(b), the time that a batch of b rows
// takes on an executor, everything included that lies between the dispatch and
// the response. Index 0 is unused. It must not decrease in b and must not be
// modified once it was given to a Scheduler.
type Table []Time

// At returns l(b). Beyond the table it continues the line through its last two
// entries, because exec needs l(|B|+1) even for the largest batch.
func (t Table) At(b int) Time {
	if b < len(t) {
		return t[b]
	}
	return t.beyond(b)
}

func (t Table) beyond(b int) Time {
	last := len(t) - 1
	switch {
	case last < 1:
		return 0
	case last == 1:
		return t[1]
	}
	return t[last] + Time(b-last)*(t[last]-t[last-1])
}

// Nearly is the smallest batch that runs nearly as efficiently as one of b rows:
// l(x)/x <= (1+loss) l(b)/b.
func (t Table) Nearly(b int, loss float64) int {
	enough := (1 + loss) * float64(t.At(b)) / float64(b)
	for b > 1 && float64(t.At(b-1))/float64(b-1) <= enough {
		b--
	}
	return b
}

// Linear returns the table of l(b) = alpha*b + beta for 1..largest+1 rows, the form
// in which Symphony publishes profiles.
func Linear(alpha, beta Time, largest int) Table {
	t := make(Table, largest+2)
	for b := 1; b < len(t); b++ {
		t[b] = Time(b)*alpha + beta
	}
	return t
}
