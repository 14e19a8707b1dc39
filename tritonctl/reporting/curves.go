// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"context"
	"fmt"
	"time"

	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// factors of the rate that is asked about, and further seeds, for the curves of a page.
var (
	factors = [...]float64{.4, .6, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 4}
	further = [...]uint64{0, 1, 2}
)

// longest is how many requests are simulated for curves that nobody ordered: some ten seconds of one core.
const longest = 40e6

// Curve simulates every variant at other rates and seeds, for the page, and returns why not where it does not.
func (o *Options) Curve(ctx context.Context, all []Variant, runs []report.Run, dir string) (why string, err error) {
	if o.curves.Changed && !o.Curves || !o.Wanted() {
		return "they were not asked for (--curves).", nil
	}
	base := runs[0].Result
	for i, v := range all {
		if v.Scenario.Trace != nil {
			return "a trace has its own rate.", nil
		}
		if n := float64(runs[i].Result.Total.Arrivals); n == 0 {
			return "nothing arrives.", nil
		} else if n *= float64(len(all) * len(factors) * len(further)); n > longest && !o.Curves {
			return fmt.Sprintf("they are %.3g requests to simulate; --curves does that.", n), nil
		}
	}
	task := o.Begin("simulating other rates")
	done, steps := 0, float64(len(all)*len(factors)*len(further))
	for i, v := range all {
		err := o.with(ctx, v, dir, func(options scenario.Options) error {
			w, err := v.Scenario.World(options)
			if err != nil {
				return err
			}
			nominal := 0.0
			for _, m := range w.Snapshot.GetModels() {
				nominal += m.GetRate()
			}
			if err := w.Close(); err != nil {
				return err
			}
			for _, seed := range further {
				for f, factor := range factors {
					at := options
					at.Rate, at.Seed = factor*nominal, base.Seed+seed
					task.At(float64(done), steps, fmt.Sprintf("%s, %s req/s", v.Name, report.Rate(factor*base.Total.Rate)))
					r, err := v.Scenario.Run(ctx, at)
					if err != nil {
						return err
					}
					runs[i].Curve = append(runs[i].Curve, report.Trial{Seed: at.Seed, Rate: factor * base.Total.Rate, Bad: r.WorstBadRate()})
					done++
					if factor > 1 && r.WorstBadRate() > report.Hopeless {
						done += len(factors) - 1 - f
						break
					}
				}
			}
			return nil
		})
		if err != nil {
			return "", named(all, v, err)
		}
	}
	return "", nil
}

// Setup says in words what the variants simulate.
func (o *Options) Setup(s *scenario.Scenario, runs []report.Run, dir string) ([]report.Fact, error) {
	plain := *s
	plain.Policy = nil // who plans is not part of the world
	w, err := plain.World(scenario.Options{Dir: dir, Seed: o.Seed, GPUs: o.GPUs})
	if err != nil {
		return nil, err
	}
	defer w.Close() //nolint:errcheck // it was only read
	facts := append(report.World(w.Snapshot), report.Load(w.Snapshot))
	r := runs[0].Result
	length := fmt.Sprintf("%v of arrivals count", seconds(r.Seconds))
	if r.WarmupSeconds > 0 {
		length += fmt.Sprintf(", after %v that do not", seconds(r.WarmupSeconds))
	}
	if s.Trace != nil {
		facts = append(facts, report.Fact{Name: "Arrivals", Text: "as in " + s.Trace.File})
	}
	facts = append(facts, report.Fact{Name: "Length", Text: length}, report.Fact{Name: "Seed", Text: fmt.Sprint(r.Seed)})
	if s.Policy != nil {
		facts = append(facts, report.Fact{Name: "Policy of the scenario", Text: s.Policy.Name})
	}
	if s.Dispatch.Discipline != "" {
		facts = append(facts, report.Fact{Name: "Discipline of the scenario", Text: s.Dispatch.Discipline})
	}
	return facts, nil
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}

// Unknown is what no simulation of a scenario knows.
func Unknown(s *scenario.Scenario) []string {
	all := []string{
		"whether batches take as long as the profiles say: an error there is in every figure here;",
		"stalls of a machine, and the processor time that conch takes to decide when it is short of it;",
	}
	if s.Jitter == 0 {
		all = append(all, "by how much executions vary: here each takes exactly what its profile says;")
	}
	if s.Delays == (scenario.Delays{}) {
		all = append(all, "what networks and protocols take: here nothing;")
	}
	return append(all, "what callers do when answers are late: here they go on as before.")
}
