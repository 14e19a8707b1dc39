// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import "time"

// Pace is how long something takes, or may take, at present, such as a model's executions for the steps of DAGs: a mean over the last. The zero value knows
// none.
type Pace struct{ mean float64 } // nanoseconds; 0: there was none

// paceWeight is the part of the mean that the last makes.
const paceWeight = 1. / 32

// Add counts one more.
func (p *Pace) Add(took time.Duration) {
	if p.mean == 0 {
		p.mean = float64(took)
		return
	}
	p.mean += (float64(took) - p.mean) * paceWeight
}

// Known reports whether there is a mean.
func (p *Pace) Known() bool { return p.mean > 0 }

// Or is the mean, or what is known before there is one.
func (p *Pace) Or(known time.Duration) time.Duration {
	if p.mean == 0 {
		return known
	}
	return time.Duration(p.mean)
}

// forOthers is the part of the time to spare that a step leaves to those that follow it, for their waits. It is chosen by simulations of drawn DAGs
// (`make bench BENCH=pipelines`); what steps wait at present says less, because a step that has time waits for it.
const forOthers = 1. / 4

// Reserve is how long before the end of the whole a step of a DAG has to be done: what follows it keeps its time, after on the longest path, and a quarter
// of its part of what the SLO leaves beyond the whole longest path. It is zero for a step that nothing follows.
func Reserve(after, whole, slo time.Duration) time.Duration {
	if after == 0 {
		return 0
	}
	return after + time.Duration(forOthers*float64(max(0, slo-whole))*float64(after)/float64(whole))
}
