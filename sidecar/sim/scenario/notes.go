// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// Notes are warnings about a scenario that can be run but is probably not intended: models whose SLO no request can meet, and models that the
// file's plan leaves out.
func (s *Scenario) Notes() []string {
	snapshot, err := s.snapshot()
	if err != nil {
		return nil // a run says why
	}
	var notes []string
	x := policy.NewIndex(snapshot)
	for _, m := range snapshot.GetModels() {
		fastest, on := math.Inf(1), ""
		for _, g := range x.GPUs() {
			if p := x.UsableProfile(m.GetName(), g.GetType()); p != nil {
				if us, ok := p.Latency(1, 100); ok && us < fastest {
					fastest, on = us, g.GetType()
				}
			}
		}
		if slo := time.Duration(m.GetSloUs()) * time.Microsecond; slo > 0 && !math.IsInf(fastest, 1) && slo.Seconds()*1e6 < fastest {
			notes = append(notes, fmt.Sprintf("%s: an SLO of %v is shorter than one row takes on %s (%v): no request of it can be good",
				m.GetName(), slo, on, time.Duration(fastest*1e3).Round(time.Microsecond)))
		}
		if s.Plan != nil && len(s.Plan.Partitions) > 0 && !slices.ContainsFunc(s.Plan.Partitions, func(p Partition) bool { return slices.Contains(p.Models, m.GetName()) }) {
			notes = append(notes, m.GetName()+": no partition of the plan has it: all of its requests are refused")
		}
	}
	if note := NoteOn(s.Dispatch.Discipline); note != "" {
		notes = append(notes, note)
	}
	return notes
}

// NoteOn is what a reader should know of how a discipline is simulated; empty where nothing is special.
func NoteOn(discipline string) string {
	if discipline != segmented {
		return ""
	}
	return "segment: each request is a query of its own and dropped where it cannot make its deadline, the timeline has a query's operators of one group as a batch, operators of a model are equally long, " +
		"and what runs at once shares the GPU by the models' creq; no GPU is that simple, and Abacus's authors trained a network instead (sidecar/sim/segment)"
}
