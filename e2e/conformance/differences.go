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
	return []Difference{
		{
			Case: "batching/without dynamic_batching every request runs alone", Free: true,
			Reason: "Conch batches requests of every model whose max_batch_size allows it",
			Docs:   "Requests of a model without `dynamic_batching` may share an execution, if its `max_batch_size` is above 0. Answers are the same; `exec_count` is lower.",
		},
		{
			Case: "batching/what queues during an execution runs together", Free: true,
			Reason: "Conch's discipline decides when a batch starts",
			Docs:   "Requests that wait during an execution start when the model's discipline decides, and not always as one batch.",
		},
		{
			Case: "batching/in the order of arrival", Free: true,
			Reason: "Conch's queue chooses requests that fit one execution",
			Docs:   "Waiting requests of one model may run in another order than that of their arrival, if that fills an execution.",
		},
		{
			Case: "grpc/many pings on a connection without calls end it", Shows: "actual  : \"\"",
			Reason: "Conch does not know the servers' flags for pings, and a connection costs little",
			Docs:   "Clients may ping as often as they like, up to 100 times a second, with calls or without. A server with default flags ends a connection at the fourth ping without a call.",
		},
		{
			Case: "statistics/one request more", Free: true,
			Reason: "the durations of such a model are in part estimates from averages, which may fall while a request adds to them",
			Docs:   "Statistics of a model that ensembles call: counts are exact, durations are estimates from averages and may fall a little between two readings.",
		},
		{
			Case: "ensemble/statistics of a request that fails", Shows: "actual  : 1",
			Reason: "it is one request",
			Docs:   "A request of an ensemble that fails counts once in the ensemble's statistics. Triton counts it twice, unless another step runs when one fails.",
		},
		{
			Case: "ensemble/the steps after a client has left", Shows: "actual  : 1",
			Only:   []string{"conch tritonserver 1", "conch tritonserver 3", "conch minitriton 1", "conch minitriton 3", "conch attach control"},
			Reason: "nobody waits for their results",
			Docs:   "Steps of an ensemble that have not begun when its client leaves do not run. Triton runs them, and counts the request as answered.",
		},
		{
			Case: "connection/it stays open after chunks", Shows: "the answer says that the connection closes",
			Reason: "Conch cannot know whether a chunked request also had a length. A proxy before Conch may have taken another byte for the request's end",
			Docs:   "A connection closes after a request whose body came in chunks. Triton's clients send lengths.",
		},
		{
			Case: "connection/a client that has said all", Free: true,
			Reason: "the end of what a client sends is the only sign that the client has gone, and its request is cancelled then",
			Docs:   "A client that closes its half of an HTTP connection before it has the answer may get status 400, as a client that has gone.",
		},
		{
			Case: "priority/an answer waits for those before it", Free: true, Only: []string{"conch tritonserver 3", "conch minitriton 3"},
			Reason: "every partition keeps the order of its own requests",
			Docs:   "`preserve_ordering` holds for the requests of one partition. A model on several partitions answers in the order of each partition.",
		},
		{
			Case: "settings/log refused: the good half of an order is set", Shows: "what came before the part that is wrong holds",
			Reason: "an order over gRPC is carried out by all partitions or by none",
			Docs:   "An order of log settings that Triton refuses in part changes nothing. Triton itself keeps the settings before the part that it refuses.",
		},
		{
			Case: "repository/a model that only the request has is not listed", Shows: "fresh is listed",
			Only:   []string{"conch tritonserver 1", "conch tritonserver 3", "conch minitriton 1", "conch minitriton 3", "conch attach control"},
			Reason: "the files of a load request become part of Conch's repository, and outlast a restart",
			Docs:   "A model that came with the files of a load request is listed in the repository index; Triton serves it and does not list it.",
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
