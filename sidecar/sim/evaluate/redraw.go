// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// piece is about how long the pieces are that a recording is put together from: long enough to keep a burst.
const piece = time.Second

// leastPieces and mostPieces bound how many there are.
const leastPieces, mostPieces = 3, 1000

// drawnPieces are the fewest pieces of a draw of a recording where rates of past minutes are known: a draw of few minutes tells plans apart by chance.
const drawnPieces = 10

// Redraw makes other arrivals like a traffic, of the same length unless they are more than [MaxRequests]: those that it had might as well have been these. What was generated is generated with
// another seed. What was recorded is put together from pieces of itself (a circular block bootstrap, for each name apart): bursts and moments of much
// load stay, but meet those of other names elsewhere, twice or not at all.
//
// How much load there will be is to be foreseen. Where the snapshot has rates of past minutes these say so: each piece, and a generated traffic as a whole, gets as many
// requests as in a minute that is drawn from a [forecast], and a recording of few pieces becomes a draw of more. Where it has none, the recording is all that is known, and the next
// piece differs from the mean of n by more than they do: its variance is s^2 (n+1)/n, and theirs s^2 (n-1)/n. So a piece with more requests than the mean
// gets more of them still, and one with fewer fewer.
//
// Draws above 0 are independent of each other and of the traffic that [Generate] makes; equal ones are equal.
func Redraw(s *policy.Snapshot, t *Traffic, draw uint32) (*Traffic, error) {
	purpose := fmt.Sprintf("draw %d", draw)
	if t.Source == SourceGenerated {
		return generate(s, t.Length, purpose, func(name string, rate float64) float64 {
			if f := foresee(s, name); f != nil {
				return f.draw(workload.Seed(s.GetSeed(), purpose+" level", name))
			}
			return rate
		})
	}
	other := &Traffic{Names: t.Names, Length: t.Length, Source: t.Source}
	by := make([][]workload.Arrival, len(t.Names))
	for _, a := range t.Arrivals {
		if a.At < t.Length && a.Model >= 0 && int(a.Model) < len(by) {
			by[a.Model] = append(by[a.Model], a)
		}
	}
	pieces := max(leastPieces, min(mostPieces, t.Length/piece))
	length := t.Length / pieces
	if length <= 0 {
		return t, nil
	}
	if slices.ContainsFunc(t.Names, func(name string) bool { return foresee(s, name) != nil }) {
		other.Length = max(t.Length, drawnPieces*length)
	}
	// ordered sorts what there is, and ends the traffic where it is too much.
	ordered := func() {
		slices.SortStableFunc(other.Arrivals, func(a, b workload.Arrival) int {
			return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Model, b.Model))
		})
		if len(other.Arrivals) > MaxRequests {
			other.Length = max(1, other.Arrivals[MaxRequests].At)
			i, _ := slices.BinarySearchFunc(other.Arrivals, other.Length, func(a workload.Arrival, at time.Duration) int { return cmp.Compare(a.At, at) })
			other.Arrivals = other.Arrivals[:min(i, MaxRequests)]
		}
	}
	for i, all := range by {
		random := workload.Seed(s.GetSeed(), purpose, t.Names[i])
		mean := float64(len(all)) / float64(pieces)
		further, level := math.Sqrt(float64(pieces+1)/float64(pieces-1)), func() float64 { return 1 }
		if f := foresee(s, t.Names[i]); f != nil && mean > 0 {
			further, level = 1, func() float64 { return f.draw(random) * length.Seconds() / mean }
		}
		for at := time.Duration(0); at < other.Length; at += length {
			from := time.Duration(random.Int64N(int64(t.Length)))
			to := from + min(length, other.Length-at)
			arrivals := append(within(all, from, min(to, t.Length), at-from), within(all, 0, to-t.Length, at-from+t.Length)...)
			want := min(MaxRequests, level()*(mean+further*(float64(len(arrivals))-mean)))
			if other.Arrivals = append(other.Arrivals, resized(arrivals, want, min(other.Length, at+length), random)...); len(other.Arrivals) > 2*MaxRequests {
				ordered()
			}
		}
		other.Arrivals = slices.DeleteFunc(other.Arrivals, func(a workload.Arrival) bool { return a.At >= other.Length })
	}
	ordered()
	return other, nil
}

// within are the arrivals of a span, moved by so much.
func within(all []workload.Arrival, from, to, by time.Duration) (some []workload.Arrival) {
	i, _ := slices.BinarySearchFunc(all, from, func(a workload.Arrival, at time.Duration) int { return cmp.Compare(a.At, at) })
	for ; i < len(all) && all[i].At < to; i++ {
		arrival := all[i]
		arrival.At += by
		some = append(some, arrival)
	}
	return some
}

// resized has about so many arrivals instead: some are left out, or come several times, evenly until the next or the end.
func resized(all []workload.Arrival, want float64, end time.Duration, random *rand.Rand) (some []workload.Arrival) {
	for i, a := range all {
		n := int(want / float64(len(all)))
		if random.Float64() < want/float64(len(all))-float64(n) {
			n++
		}
		next := end
		if i+1 < len(all) {
			next = all[i+1].At
		}
		for k := range n {
			arrival := a
			arrival.At += (next - a.At) * time.Duration(k) / time.Duration(n)
			some = append(some, arrival)
		}
	}
	return some
}
