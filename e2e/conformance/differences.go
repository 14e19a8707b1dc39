// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"
)

// Difference is a case in which a target answers otherwise than Triton, on purpose.
type Difference struct {
	// Case is its name.
	Case string
	// Reason says why, in a few words.
	Reason string
	// Docs is the sentence for docs/compatibility.md: what a user sees.
	Docs string
	// Shows is what the failure of the case must say, so that no other fault hides behind the line.
	Shows string
	// Free cases may pass or not: they say what runs together in a server on its own, which is not for a client to see.
	Free bool
	// Only are the targets that it holds for; none means every Conch.
	Only []string
}

// shownBy reports whether a failure is the one that is listed.
func (d *Difference) shownBy(output string) bool { return strings.Contains(output, d.Shows) }

// DifferencesOf are those of one target; a target without Conch has none.
func DifferencesOf(target string) []Difference {
	if !strings.HasPrefix(target, "conch ") {
		return nil
	}
	return slices.DeleteFunc(Differences(), func(d Difference) bool { return len(d.Only) > 0 && !slices.Contains(d.Only, target) })
}

// Differences are Conch's. Everything else of the suite it answers as Triton does, whatever stands behind it.
func Differences() []Difference {
	list := []Difference{
		{
			Case: "batching/without dynamic_batching every request runs alone", Free: true,
			Reason: "Conch batches requests of every model whose max_batch_size allows it",
			Docs:   "Requests of a model without `dynamic_batching` may share an execution, if its `max_batch_size` is above 0. Answers are the same; `exec_count` is lower.",
		},
		{
			Case: "batching/what queues during an execution runs together", Free: true,
			Reason: "Conch's discipline decides when a batch starts",
			Docs:   "What waits during an execution runs together when the model's discipline says so, not always as one batch.",
		},
		{
			Case: "batching/in the order of arrival", Free: true,
			Reason: "Conch's queue puts together what fits",
			Docs:   "Requests of one model that wait may run in another order than they came, if that fills an execution.",
		},
		{
			Case: "repository/unload and load", Shows: "'string' is not found", Only: []string{"conch attach observe"},
			Reason: "Conch knows only what the server serves now, and not what it served before",
			Docs:   "Where Conch only observes, a request to a model that was unloaded is answered as if it had never been loaded: the same status, other words.",
		},
	}
	return append(list, notYet()...)
}

// notYet are the differences that are faults of Conch's.
func notYet() []Difference {
	var list []Difference
	add := func(name, shows, docs string) {
		list = append(list, Difference{Case: name, Shows: shows, Reason: "not yet as Triton does it", Docs: docs})
	}
	const form = "Some refusals over HTTP are `text/plain` where Triton's are `application/json`, and have the words of its gRPC side."
	for _, name := range []string{
		"memory/over HTTP: input without a size", "memory/over HTTP: output without a size", "memory/over HTTP: output beyond the end",
		"memory/over HTTP: output at an offset beyond the end", "sequence/a correlation id that is too long",
	} {
		add(name, "text/plain", form)
	}
	add("ensemble/config", "max_inflight_requests", "The configuration of an ensemble shows `max_inflight_requests`, a field of a newer Triton.")
	const members = "Unloading a model leaves the ensembles that call it loaded, or loading it does not bring them back."
	for _, name := range []string{
		"ensemble/unload of a member takes it along, load brings it back", "ensemble/load loads what it calls", "ensemble/unload with dependents",
	} {
		list = append(list, Difference{Case: name, Free: true, Docs: members,
			Reason: "not yet as Triton does it: whether the ensemble follows depends on when the plan is made"})
	}
	return list
}

func find(list []Difference, name string) *Difference {
	i := slices.IndexFunc(list, func(d Difference) bool { return d.Case == name })
	if i < 0 {
		return nil
	}
	return &list[i]
}
