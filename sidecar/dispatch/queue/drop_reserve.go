// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

const (
	// gathers is how many of its own gathering times a batch of reserve leaves
	// room for beside the first, at most, where the model keeps few partitions busy.
	gathers = .7
	// overload is the load from which on reserve stays off the edge. What models
	// need is reckoned with batches that are gathered at their rates; those that
	// wait for their turn grow larger, so that somewhat more than there seem to be
	// partitions for can still be served.
	overload = 1.5
	// edge is the part of its time by which a batch may then end late and still
	// be in time.
	edge = .25
)

// reserve is our own: the window drop (see window) with something in reserve. No
// request is given up for a batch that is larger than the load asks for: reserve
// holds on to the smallest b with which the partitions carry the present load,
// l(b)/b <= l(b*)/b* / load, b* being the largest within reach. That is one
// row where partitions are plenty, and b* where more is asked for than can be
// done, or where there is a single partition: a small batch then makes the next
// ones wait, and these are as small.
//
// b* leaves no time for a partition that becomes free late, or for requests that
// come late: l(b*) + b*/rate is the SLO. So a model that has n partitions to
// itself, to stagger its batches on, holds on to no more than what leaves time
// to gather it n times, and 1 + min(.7, g^2) times at the most, g being the part
// of l(1) that a row saves which joins: where company saves little, time does
// not buy much. From 8 partitions on it is less, as one of many is soon free:
// 8/n of what exceeds one.
//
// Far past the peak, requests are given up in any case. Then reserve gives up who
// would start only just in time, so that an execution that takes longer than
// predicted does not make a whole batch late: up to a quarter of l(b*), and half
// of what the SLO leaves for it.
type reserve struct{}

func (reserve) Name() string  { return "reserve" }
func (reserve) bounded() bool { return true }

func (reserve) hold(o outlook) (int, Time) {
	if o.perSecond == 0 {
		return o.reach, 0
	}
	b := o.reach
	if o.partitions > 1 {
		b = nearly(o.table, o.reach, max(0, 1/o.load-1))
	}
	spare := min(gathers, o.saved*o.saved) * min(1, few/max(1, o.need))
	row := min(1+spare, max(1, o.need)) / o.perSecond * 1e9
	for b > 1 && float64(o.table.At(b))+float64(b)*row > float64(o.slo) {
		b--
	}
	l := float64(o.table.At(o.reach))
	rest := float64(o.slo) - l - float64(o.reach)/o.perSecond*1e9
	return b, Time(max(0, min(l*min(edge, (o.load-overload)/2), rest/2)))
}
