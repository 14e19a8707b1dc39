// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "math"

// dutyCycle is how Nexus and gpulet run several models on one GPU: the models of
// an executor take turns in a fixed order, each with the batch that it gathers
// while the others run (Symphony, section 2.2, describes Nexus's rounds; gpulet,
// section 2.2, the duty cycle of its squishy bin packing). At its turn a model
// runs what is queued, up to its b; a model that has nothing is skipped.
//
// With a cycle given, b = rate x cycle. Without one, b is what squishy bin packing
// gives the model. Where it keeps whole executors busy, that is the batch of a
// saturated executor: the largest with 2 l(b) <= SLO, so that a request that just
// missed a batch is in time with the next. A model with less load than one executor
// can serve is a residue, and shares: the largest b with l(b) + b/rate <= SLO, where
// rate is the model's part on one executor, because Nexus assigns requests to
// executors in advance.
//
// That the sum of l(b) over an executor's models fits into the cycle is the
// plan's business: with more load than that, turns come too late and requests
// are dropped. An executor does not idle at the end of a cycle.
type dutyCycle struct{ cycle Time }

func dutyCycleKind() Kind {
	const cycle = "cycle"
	return Kind{
		Description: Description{
			Name:        "duty-cycle",
			Help:        "models take turns on an executor, each with the batch that it gathers in one cycle (Nexus, gpulet)",
			DefaultDrop: "window",
			Parameters: []Parameter{{
				Name: cycle, Default: "0s",
				Help: "length of the cycle, a duration such as 20ms; 0s: as long as each model's rate and SLO allow",
			}},
		},
		New: func(params map[string]string) (Discipline, error) {
			c, err := durationParameter(params, cycle)
			if err != nil {
				return nil, err
			}
			return dutyCycle{cycle: c}, nil
		},
	}
}

func (dutyCycle) DefaultDrop() string         { return "window" }
func (dutyCycle) Exec(now Time, _ *Load) Time { return now }
func (dutyCycle) Size(rows int) int           { return rows }
func (dutyCycle) cycles()                     {}

func (y dutyCycle) MaxRows(l *Load) int {
	d := l.Model
	perExecutor := d.Rate / 1e9 / float64(max(1, d.Executors)) // rows per nanosecond
	if y.cycle > 0 && d.Rate > 0 {
		return min(d.MaxBatch, max(1, int(math.Ceil(perExecutor*float64(y.cycle)))))
	}
	if d.SLO <= 0 {
		return d.MaxBatch
	}
	most := 1
	for most < d.MaxBatch && 2*d.Table.At(most+1) <= d.SLO {
		most++
	}
	if d.Rate == 0 || d.Rate/1e9*float64(d.Table.At(most)) >= float64(most) {
		return most
	}
	for most > 1 && float64(d.Table.At(most))+float64(most)/perExecutor > float64(d.SLO) {
		most--
	}
	return most
}
