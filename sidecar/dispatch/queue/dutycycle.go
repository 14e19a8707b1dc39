// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "math"

// dutyCycle is how Nexus and gpulet run several models on one GPU (Nexus,
// section 6.1, squishy bin packing; gpulet, section 4): the models of a partition
// take turns in a fixed order. At its turn a model runs what is queued, up to the
// b that it gathers in one cycle; a model that has nothing is skipped.
//
// With a cycle given, b = rate x cycle. Without one, it is the largest b for
// which a request that just missed a turn still makes it after the next one:
// l(b) + b/rate <= SLO, and never more than 2 l(b) <= SLO, the batch of a
// partition that the model has for itself. The rate is the model's part on one
// partition: Nexus deals requests out to partitions in advance.
//
// That the sum of l(b) over a partition's models fits into the cycle is the
// plan's business: with more load than that, turns come too late and requests
// are dropped. A partition does not idle at the end of a cycle.
type dutyCycle struct{ cycle Time }

func dutyCycleKind() disciplineKind {
	const cycle = "cycle"
	return disciplineKind{
		Description: Description{
			Name:        "duty-cycle",
			Help:        "models take turns on a partition, each with the batch that it gathers in one cycle (Nexus, gpulet)",
			DefaultDrop: "window",
			Parameters: []Parameter{{
				Name: cycle, Default: "0s",
				Help: "length of the cycle, a duration such as 20ms; 0s: as long as each model's rate and SLO allow",
			}},
		},
		make: func(params map[string]string) (Discipline, error) {
			c, err := durationParameter(params, cycle, 0)
			if err != nil {
				return nil, err
			}
			return dutyCycle{cycle: c}, nil
		},
	}
}

func (dutyCycle) Name() string                     { return "duty-cycle" }
func (dutyCycle) DefaultDrop() string              { return "window" }
func (dutyCycle) Exec(now Time, _ *Candidate) Time { return now }
func (dutyCycle) Size(rows int) int                { return rows }
func (dutyCycle) cycles()                          {}

func (y dutyCycle) Most(d Demand) int {
	perPartition := d.Rate / 1e9 / float64(max(1, d.Partitions)) // rows per nanosecond
	if y.cycle > 0 && d.Rate > 0 {
		return min(d.MaxBatch, max(1, int(math.Ceil(perPartition*float64(y.cycle)))))
	}
	if d.SLO <= 0 {
		return d.MaxBatch
	}
	most := 1
	for b := 2; b <= d.MaxBatch && 2*d.Table.At(b) <= d.SLO; b++ {
		if d.Rate > 0 && float64(d.Table.At(b))+float64(b)/perPartition > float64(d.SLO) {
			break
		}
		most = b
	}
	return most
}
