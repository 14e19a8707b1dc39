// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import "time"

// search is one round of scheduling's conversation with the predictor: the latencies of several candidates are asked for at once, which is what
// multi-way search is about (section 6.3), so what counts is how often it asks.
type search struct {
	predictor Predictor
	margin    float64
	ways      int
	asked     int
}

// all asks for the latencies of at most ways candidates, with the margin.
func (s *search) all(candidates ...[]Slice) []time.Duration {
	s.asked++
	latencies := make([]time.Duration, len(candidates))
	for i, group := range candidates {
		latencies[i] = padded(s.predictor.Latency(group), s.margin)
	}
	return latencies
}

func padded(d time.Duration, margin float64) time.Duration {
	return time.Duration(float64(d) * (1 + margin))
}

// between finds how many of the queries that follow the first fit into the headroom as a whole: {first}, {first, second}, ... in as many ways as there
// are. It returns the number of queries in the group, 0 where not even the first fits, with the group's latency; for 0 the latency of the first alone.
func (s *search) between(tasks []task, models []Model, headroom time.Duration) (fit int, latency time.Duration) {
	group := make([]Slice, len(tasks))
	for i, t := range tasks {
		group[i] = t.rest(models[t.Model].Operators)
	}
	for fit < len(tasks) {
		var candidates [][]Slice
		for n := fit + 1; n <= min(len(tasks), fit+s.ways); n++ {
			candidates = append(candidates, group[:n])
		}
		for i, l := range s.all(candidates...) {
			if l > headroom {
				if fit == 0 {
					latency = l
				}
				return fit, latency
			}
			fit, latency = len(candidates[i]), l
		}
	}
	return fit, latency
}

// within finds the operator up to which the query t can be added to a group, by evenly spaced cuts between the last that fits and the first that does
// not, in each round as many as there are ways. It stops where less than enough of the headroom is left. It returns t.next where nothing fits, and
// the latency of group and slice; the caller knows that the group alone takes latency and fits, and that all of t does not.
func (s *search) within(group []Slice, t task, operators int, headroom, latency, enough time.Duration) (int, time.Duration) {
	low, high := t.next, operators
	for high-low > 1 && headroom-latency >= enough {
		cuts := cuts(low, high, s.ways)
		var candidates [][]Slice
		for _, cut := range cuts {
			candidates = append(candidates, append(group[:len(group):len(group)], t.rest(cut)))
		}
		for i, l := range s.all(candidates...) {
			if l > headroom {
				high = cuts[i]
				break
			}
			low, latency = cuts[i], l
		}
	}
	return low, latency
}

// cuts are at most n different numbers, evenly spaced, between low and high.
func cuts(low, high, n int) []int {
	n = min(n, high-low-1)
	all := make([]int, n)
	for i := range all {
		all[i] = low + (high-low)*(i+1)/(n+1)
	}
	return all
}
