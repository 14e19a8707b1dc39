// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
)

// Text is the explanation as a person reads it, stable to the byte.
func (e *Explanation) Text() string {
	var b strings.Builder
	slo := "no SLO"
	if e.SLOUS > 0 {
		slo = fmt.Sprintf("SLO %s, late: %s", millis(float64(e.SLOUS)), e.Late)
	}
	fmt.Fprintf(&b, "%s: %s, %.4g requests/s", e.Model, slo, e.Rate)
	if e.Burstiness > 0 {
		fmt.Fprintf(&b, ", burstiness %.3g", e.Burstiness)
	}
	b.WriteString("\n")
	if e.Policy == "" {
		b.WriteString("no plan is in force\n")
		return b.String()
	}
	fmt.Fprintf(&b, "plan %d by %s %s\n", e.Revision, e.Policy, e.PolicyVersion)
	if e.PassThroughReason != "" {
		fmt.Fprintf(&b, "not batched: %s\n", e.PassThroughReason)
	}
	if e.Discipline != "" {
		fmt.Fprintf(&b, "dispatched: %s\n", e.Discipline)
	}
	for _, rule := range e.Rules {
		fmt.Fprintf(&b, "the operator says: %s\n", rule)
	}
	if len(e.Placements) == 0 {
		b.WriteString("placed nowhere\n")
	}
	for _, p := range e.Placements {
		p.write(&b, e)
	}
	if e.Refusals != "" {
		fmt.Fprintf(&b, "refused: %s\n", e.Refusals)
	}
	for _, reason := range e.Reasons {
		fmt.Fprintf(&b, "why: %s\n", reason)
	}
	e.Expected.write(&b, "expected")
	e.Measured.write(&b, "measured")
	e.Steps.write(&b)
	if e.Whole {
		fmt.Fprintf(&b, "steps: their times are not measured; tritonctl model get %s says who executes them\n", e.Model)
	}
	return b.String()
}

func (p *Placement) write(b *strings.Builder, e *Explanation) {
	fmt.Fprintf(b, "in %s: %d%% of %s", p.Partition, p.Share, p.GPU)
	if p.GPUType != "" {
		fmt.Fprintf(b, " (%s)", p.GPUType)
	}
	if p.Share < 100 && !p.Enforced {
		b.WriteString(", share not enforced")
	}
	fmt.Fprintf(b, ", rank %d, batch up to %d", p.Rank, p.MaxBatch)
	if p.As != e.Model {
		fmt.Fprintf(b, ", as %s", p.As)
	}
	b.WriteString("\n")
	switch q := p.Profile; {
	case q == nil && e.Steps != nil: // its steps are batched by theirs
	case q == nil:
		b.WriteString("    no profile yet: requests are forwarded at once\n")
	case !q.Usable:
		fmt.Fprintf(b, "    profile (%s) not usable yet: requests are forwarded at once\n", q.Source)
	default:
		fmt.Fprintf(b, "    profile (%s): l(1) %s +- %s, upper %s; l(%d) %s +- %s, upper %s; ",
			q.Source, millis(q.OneUS), millis(q.OneBoundUS), millis(q.OneUpperUS),
			p.MaxBatch, millis(q.MaxUS), millis(q.MaxBoundUS), millis(q.MaxUpperUS))
		switch {
		case e.SLOUS <= 0:
			b.WriteString("no SLO to fit")
		case q.LargestInSLO == 0:
			b.WriteString("not one row fits the SLO")
		default:
			fmt.Fprintf(b, "largest batch in the SLO %d", q.LargestInSLO)
		}
		if q.Interfered {
			b.WriteString("; slower than this of late")
		}
		b.WriteString("\n")
	}
	for _, why := range p.Why {
		fmt.Fprintf(b, "    %s\n", why)
	}
}

func (p *Performance) write(b *strings.Builder, what string) {
	if p == nil {
		return
	}
	fmt.Fprintf(b, "%s: goodput %.4g/s, bad %.3g%%, p99 %s, mean batch %.3g\n",
		what, p.Goodput, 100*p.BadRate, millis(p.LatencyP99US), p.MeanBatch)
}

// millis is a time of microseconds in milliseconds.
func millis(us float64) string { return fmt.Sprintf("%.4g ms", us/1000) }
