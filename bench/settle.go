// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/conch-serving/conch/sidecar/sim"
)

const (
	// near is the part of the best of the others that the first discipline is to hold.
	near = .995
	// Where the seeds do not tell, there are so many more at a time, up to so many.
	moreSeeds, mostSeeds = 3, 12
)

// held is the geometric mean of what a search found with its seeds, so that the quotient of two means is the mean of the quotients.
func held(c *cell) float64 { return stat.GeometricMean(rates(c.found), nil) }

// duel is what the first discipline of a line holds, as a part of what another holds under the same arrivals.
type duel struct {
	other  *cell
	ratio  float64 // geometric mean over the seeds
	margin float64 // of its logarithm, to either side: Student's 95% interval
	seeds  int
}

// quotients are what the first holds over what another holds, seed by seed, as far as both have them.
func quotients(first, other *cell) []float64 {
	a, o := rates(first.found), rates(other.found)
	all := make([]float64, min(len(a), len(o)))
	for i := range all {
		all[i] = max(a[i], 1e-9) / max(o[i], 1e-9)
	}
	return all
}

// against compares seed by seed.
func against(first, other *cell) duel {
	logs := quotients(first, other)
	n := len(logs)
	for i := range logs {
		logs[i] = math.Log(logs[i])
	}
	mean, deviation := stat.MeanStdDev(logs, nil)
	d := duel{other: other, ratio: math.Exp(mean), seeds: n}
	if n > 1 {
		d.margin = distuv.StudentsT{Sigma: 1, Nu: float64(n - 1)}.Quantile(.975) * stat.StdErr(deviation, float64(n))
	}
	return d
}

// behind reports whether the first is surely below near, ahead whether it surely is not.
func (d duel) behind() bool { return d.ratio*math.Exp(d.margin) < near }
func (d duel) ahead() bool  { return d.ratio*math.Exp(-d.margin) >= near }

func (d duel) String() string {
	return fmt.Sprintf("%.3f (+-%.3f, %d seeds)", d.ratio, d.ratio*d.margin, d.seeds)
}

// closest is the duel with the best of the others, of those that were searched for as long as the first is; the rest was far behind.
func closest(line []*cell) (best duel) {
	for _, o := range line[1:] {
		if best.other != nil && o.requests < line[0].requests {
			continue
		}
		d := against(line[0], o)
		if best.other == nil || best.other.requests < o.requests || d.ratio < best.ratio {
			best = d
		}
	}
	return best
}

// settle gives more seeds to the first discipline and the best of the others, where it is open which of the two holds more: under bursts, or
// where one rare model decides, the seeds differ by more than the disciplines.
func (b *bench) settle(ctx context.Context, lines [][]*cell) error {
	for {
		var again []*cell
		for _, line := range lines {
			d := closest(line)
			if d.ahead() || d.behind() || d.seeds >= mostSeeds {
				continue
			}
			for _, candidate := range line {
				if candidate != line[0] && candidate != d.other || len(candidate.found.All) > d.seeds {
					continue
				}
				candidate.skip, candidate.seeds, candidate.guess, candidate.step = d.seeds, moreSeeds, candidate.found.Rate, 1.04
				again = append(again, candidate)
			}
		}
		if len(again) == 0 {
			return nil
		}
		before := make([]*sim.Found, len(again))
		for i, candidate := range again {
			before[i] = candidate.found
		}
		if err := b.search(ctx, again, moreSeeds); err != nil {
			return err
		}
		for i, candidate := range again {
			candidate.found.All = append(slices.Clip(before[i].All), candidate.found.All...)
			candidate.found.Rate = held(candidate)
		}
	}
}
