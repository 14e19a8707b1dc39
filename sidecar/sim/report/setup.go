// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// namesShown is how many models a sentence names.
const namesShown = 8

// Load is the rate of a snapshot's models.
func Load(s *policy.Snapshot) Fact {
	total := 0.0
	for _, m := range s.GetModels() {
		total += m.GetRate()
	}
	return Fact{"Load", Rate(total) + " requests per second, all models"}
}

// World says in words which GPUs and models a snapshot has.
func World(s *policy.Snapshot) []Fact {
	types := map[string]int{}
	for _, n := range s.GetNodes() {
		for _, g := range n.GetGpus() {
			types[cmp.Or(g.GetType(), "of unknown type")]++
		}
	}
	var gpus []string
	for _, t := range slices.Sorted(maps.Keys(types)) {
		gpus = append(gpus, fmt.Sprintf("%d × %s", types[t], t))
	}
	if len(gpus) == 0 {
		gpus = []string{"none"}
	}
	facts := []Fact{{"GPUs", strings.Join(gpus, ", ")}}
	slos := map[int64][]string{}
	for _, m := range s.GetModels() {
		slos[m.GetSloUs()] = append(slos[m.GetSloUs()], m.GetName())
	}
	var models []string
	for _, slo := range slices.Sorted(maps.Keys(slos)) {
		names := slos[slo]
		text := strings.Join(names[:min(len(names), namesShown)], ", ")
		if len(names) > namesShown {
			text += fmt.Sprintf(" and %d more", len(names)-namesShown)
		}
		if slo > 0 {
			text += fmt.Sprintf(" (SLO %v)", time.Duration(slo)*time.Microsecond)
		} else {
			text += " (no SLO)"
		}
		models = append(models, text)
	}
	return append(facts, Fact{"Models", fmt.Sprintf("%d: %s", len(s.GetModels()), strings.Join(models, "; "))})
}
