// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

// Load is units of rate by model, in the order of the snapshot's models: six bits each, of which five count and the highest stays free for
// comparisons. Sums of two loads of at most [maxUnits] fit.
type Load uint64

const (
	width     = 6
	maxModels = 10
	maxUnits  = 15
	lowBits   = 1<<(width-1) - 1
)

// guards has the highest bit of every model.
const guards Load = 1<<5 | 1<<11 | 1<<17 | 1<<23 | 1<<29 | 1<<35 | 1<<41 | 1<<47 | 1<<53 | 1<<59

// Of model i, in units.
func (l Load) Of(i int) int { return int(l>>(width*i)) & lowBits }

// With is the load with n units of model i, which it has none of.
func (l Load) With(i, n int) Load { return l | Load(n)<<(width*i) } //nolint:gosec // n is from 0 to 30

// Units of all models together.
func (l Load) Units() int {
	n := 0
	for ; l != 0; l >>= width {
		n += int(l & lowBits)
	}
	return n
}

// within reports that no model has more than in other.
func (l Load) within(other Load) bool { return ((other|guards)-l)&guards == guards }

// atMost is the smaller of both for every model.
func (l Load) atMost(other Load) Load {
	more := ((l | guards) - other) & guards // set where l is at least other
	mask := more - more>>(width-1)
	return l&^mask | other&mask
}

// less is what other leaves of l, which it is within.
func (l Load) less(other Load) Load { return l - other }

// missing is what l has more than other.
func (l Load) missing(other Load) Load { return l - l.atMost(other) }
