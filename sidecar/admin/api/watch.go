// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"time"
)

// Watch, GET /v1/watch?topic=models&topic=gpus, is one stream of state (server-sent events). Without a topic all topics are sent.
//
// Each server-sent event has the name of its topic as `event`, an `id` and one JSON value as `data`. What comes first for every topic is the whole
// state (Update.All); then come changes, at most one a topic and period. A client that connects again with the header Last-Event-ID gets the changes
// since, or the whole state if they are not kept any more; where nothing has changed, one event without a change. Such an event, without an id, is also sent every 15 s. A client that does not read is cut off: the last event is
// TopicEnd with an End.

// Topic is a part of the state that can be watched.
type Topic string

// Topics, with the type of what Update.Changed lists and what identifies one.
const (
	// TopicConch: Conch, one.
	TopicConch Topic = "conch"
	// TopicModels: Model by name, without Profiles and Estimates: see GET /v1/models/NAME.
	TopicModels Topic = "models"
	// TopicGPUs: GPU by GPU.Key, with its partitions.
	TopicGPUs Topic = "gpus"
	// TopicPartitions: Partition by Partition.Key, those of the plan in force and old servers that are to go.
	TopicPartitions Topic = "partitions"
	// TopicPlan: Plan, the one in force.
	TopicPlan Topic = "plan"
	// TopicRequests: ModelRequests by model.
	TopicRequests Topic = "requests"
	// TopicMinutes: Minute, each once when it has ended, those of the last hour first.
	TopicMinutes Topic = "minutes"
	// TopicWaiting: ModelWaiting by model; a model without waiting requests is gone.
	TopicWaiting Topic = "waiting"
	// TopicExecutions: Executed, each once, those of the last 30 s first, at most 8192 of them.
	TopicExecutions Topic = "executions"
	// TopicEvents: Event, each once, the last 200 first.
	TopicEvents Topic = "events"
	// TopicEnd is the last event of a stream that conch ends; data is an End.
	TopicEnd Topic = "end"
)

// Update is the data of every event but TopicEnd.
type Update struct {
	// Time on conch's clock.
	Time time.Time `json:"time"`
	// All: Changed is everything there is; what was known before is forgotten.
	All bool `json:"all,omitempty"`
	// Changed are the objects that are new or other than before, whole.
	Changed []json.RawMessage `json:"changed,omitempty"`
	// Gone names the objects that are no longer there.
	Gone []string `json:"gone,omitempty"`
}

// End is the data of TopicEnd: the reason why conch ends a stream.
type End struct {
	// Reason: "slow" (the client did not read in time), "stopping", "too many watchers".
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Conch is the state of the process itself: its version, its health, and whether this address takes orders.
type Conch struct {
	Version Version `json:"version"`
	Health  Health  `json:"health"`
	// MayChange: this door takes orders that change something.
	MayChange bool `json:"may_change"`
}

// ModelRequests is what became of a model's requests and where they spent their time.
type ModelRequests struct {
	Model      string  `json:"model"`
	SLOSeconds float64 `json:"slo_seconds"`
	// Now is over the statistics window, Hour over the last hour or since conch's start.
	Now  Attainment `json:"now"`
	Hour Attainment `json:"hour"`
}

// Attainment counts the requests of a model that ended in a window.
type Attainment struct {
	// Seconds is how long the window is. It is up to half a second longer than the statistics window, because requests are counted by half seconds.
	Seconds float64 `json:"seconds"`
	// Requests that ended, and those that were answered in time. Requests whose caller left, or that waited for their model to be loaded, count in neither.
	Requests uint64 `json:"requests"`
	InTime   uint64 `json:"in_time"`
	// Outcomes counts the others by result and reason, in the order of their number.
	Outcomes []OutcomeCount `json:"outcomes,omitempty"`
	// Spent is the mean of the requests that were answered; nil: there was none.
	Spent *Spent `json:"spent,omitempty"`
}

// Minute is what became of the requests that ended in a minute.
type Minute struct {
	// Start of the minute, in seconds since 1970.
	Start int64 `json:"start"`
	// Models counts the requests of each model that had any. Of a model that is not there nothing was measured.
	Models map[string]Counted `json:"models"`
}

// Counted is the number of requests that ended, and of those that were answered in time. As JSON it is an array: a minute has one of every model.
type Counted [2]uint64

// Requests that ended. Those whose caller left do not count.
func (c Counted) Requests() uint64 { return c[0] }

// InTime are those that were answered in time.
func (c Counted) InTime() uint64 { return c[1] }

// OutcomeCount is how many requests ended in a way; the words are the labels of conch_requests_total.
type OutcomeCount struct {
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
	Count  uint64 `json:"count"`
}

// Spent is where a request spent its time, in seconds. The four are its latency.
type Spent struct {
	// Wait: no partition that it may run on was free.
	Wait float64 `json:"wait"`
	// Gather: its partition was free, and the batch was still being gathered (deferred).
	Gather float64 `json:"gather"`
	// Execute: from the hand-over to the server until its answer was complete.
	Execute float64 `json:"execute"`
	// Conch: the rest.
	Conch float64 `json:"conch"`
}

// SlowRequest is one of the slowest requests of the last minute: GET /v1/models/NAME/slowest lists them, slowest first.
type SlowRequest struct {
	Model string `json:"model"`
	// ID as the client gave it; TraceID of its trace. Empty where there is none.
	ID      string    `json:"id,omitempty"`
	TraceID string    `json:"trace_id,omitempty"`
	Ended   time.Time `json:"ended"`
	// LatencySeconds against DeadlineSeconds, both from its arrival; 0: it has no deadline.
	LatencySeconds  float64 `json:"latency_seconds"`
	DeadlineSeconds float64 `json:"deadline_seconds"`
	Result          string  `json:"result"`
	Reason          string  `json:"reason,omitempty"`
	Partition       string  `json:"partition,omitempty"`
	Rows            int     `json:"rows"`
	// BatchRows ran together; 0: it was not executed.
	BatchRows int   `json:"batch_rows"`
	Retried   bool  `json:"retried,omitempty"`
	Spent     Spent `json:"spent"`
}

// ModelWaiting is what waits for a model now.
type ModelWaiting struct {
	Model      string `json:"model"`
	Discipline string `json:"discipline"`
	// Requests and Rows that wait, and how long the oldest does.
	Requests      int     `json:"requests"`
	Rows          int     `json:"rows"`
	OldestSeconds float64 `json:"oldest_seconds"`
	// CandidateRows is the batch that would be executed now; 0: there is none.
	CandidateRows int `json:"candidate_rows"`
	// SlackSeconds is the time until the latest start of the candidate; negative: it has passed. Nil: there is none.
	SlackSeconds *float64 `json:"slack_seconds,omitempty"`
}

// Executed is one execution on a partition. Times are seconds since 1970.
type Executed struct {
	Partition string  `json:"partition"`
	Model     string  `json:"model"`
	Start     float64 `json:"start"`
	End       float64 `json:"end"`
	Rows      int     `json:"rows"`
	Requests  int     `json:"requests"`
	// Deadline is the earliest of its requests; 0: there is none.
	Deadline float64 `json:"deadline,omitempty"`
	Failed   bool    `json:"failed,omitempty"`
}
