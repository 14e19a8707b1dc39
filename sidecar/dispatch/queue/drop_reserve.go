// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// gathers is the most of its own gathering times that a batch of reserve leaves
// room for.
const gathers = 1.7

// reserve is our own: the window drop (see window) with something in reserve. No
// request is given up for a batch that is larger than the load asks for: reserve
// holds on to the smallest b with which the partitions carry the present load,
// l(b)/b <= (1 + slack) l(b*)/b*, b* being the largest within reach. That is one
// row where partitions are plenty, and b* where more is asked for than can be
// done.
//
// b* leaves no time for a partition that becomes free late, or for requests that
// come late: l(b*) + b*/rate is the SLO. So a model that has n partitions to
// itself, to stagger its batches on, holds on to no more than what leaves time
// to gather it n times, and 1.7 times at the most.
type reserve struct{}

func (reserve) Name() string  { return "reserve" }
func (reserve) bounded() bool { return true }

func (reserve) hold(o outlook) int {
	if o.perSecond == 0 {
		return o.reach
	}
	b := nearly(o.table, o.reach, max(0, o.slack))
	row := min(gathers, max(1, o.need)) / o.perSecond * 1e9
	for b > 1 && float64(o.table.At(b))+float64(b)*row > float64(o.slo) {
		b--
	}
	return b
}
