// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// kept is the part of the reach that reserve holds on to.
const kept = .85

// reserve is our own: the window drop (see window) with something in reserve.
// The largest batch within reach leaves no time for a partition that becomes
// free late or for arrivals that come early, so holding on to it gives requests
// up at every fluctuation. reserve holds on to 85% of it, or to more where that
// would cost over a tenth of the efficiency, as it does with small batches. And
// it holds on to no more than the smallest size that runs nearly as efficiently:
// no request is given up for rows that save nothing.
type reserve struct{}

func (reserve) Name() string  { return "reserve" }
func (reserve) bounded() bool { return true }

func (reserve) hold(t Table, reach, worth int) int {
	return min(max(int(kept*float64(reach)), nearly(t, reach, nearMost)), worth)
}
