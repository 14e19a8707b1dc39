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
}

// shownBy reports whether a failure is the one that is listed.
func (d *Difference) shownBy(output string) bool { return strings.Contains(output, d.Shows) }

// Differences are Conch's. Everything else of the suite it answers as Triton does, whatever stands behind it.
func Differences() []Difference {
	return []Difference{
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
			Case: "http/config of a batching model", Shows: "unexpected end of JSON input",
			Reason: "Triton's own batching is taken out of the configuration that Triton loads",
			Docs:   "The configuration of a model shows no `dynamic_batching`: Conch batches in its place.",
		},
		{
			Case: "statistics/a model's error in its answer is a success, an exception a failure", Shows: "Not equal",
			Reason: "a request that its caller saw fail is a failure, whichever way the model said so",
			Docs:   "A request that a model answers with an error counts under `fail` in the statistics. Triton counts it under `success` unless the model threw.",
		},
		// Not yet.
		{
			Case: "statistics/a refused request is not counted", Shows: "Not equal",
			Reason: "a request that Triton refuses after Conch has queued it counts as failed",
			Docs:   "A request that Triton refuses after Conch has queued it counts as failed.",
		},
		{
			Case: "repository/unload and load", Shows: "has no available versions",
			Reason: "a model that was unloaded is answered like one that was never loaded: NOT_FOUND, but without 'has no available versions'",
			Docs:   "A model that was unloaded is answered like one that was never loaded.",
		},
		{
			Case: "repository/load with a config that is no JSON", Shows: "",
			Reason: "models come from the operator's repository: load takes no config",
			Docs:   "Load takes no `config`: models come from the operator's repository.",
		},
		{
			Case: "repository/load with another config", Shows: "",
			Reason: "models come from the operator's repository: load takes no config",
			Docs:   "Load takes no `config`: models come from the operator's repository.",
		},
	}
}

func find(list []Difference, name string) *Difference {
	i := slices.IndexFunc(list, func(d Difference) bool { return d.Case == name })
	if i < 0 {
		return nil
	}
	return &list[i]
}
