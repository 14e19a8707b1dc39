// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package operators

import (
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/observe/recent"
	"github.com/conch-serving/conch/sidecar/watch"
)

// traffic is what the request path has to show to those who watch.
type traffic struct {
	dispatcher *dispatch.Dispatcher
	recent     *recent.Recorder
}

func (t traffic) requests() ([]watch.Object, error) {
	table := t.dispatcher.Routes()
	all := t.recent.Models(time.Now())
	objects := make([]watch.Object, len(all))
	for i, m := range all {
		if table != nil && table.Models[m.Model] != nil {
			m.SLOSeconds = table.Models[m.Model].SLO.Seconds()
		}
		objects[i] = watch.Object{Key: m.Model, Value: m}
	}
	return objects, nil
}

func (t traffic) waiting() ([]watch.Object, error) {
	table := t.dispatcher.Routes()
	all := t.dispatcher.Waiting()
	objects := make([]watch.Object, len(all))
	for i, w := range all {
		out := api.ModelWaiting{Model: w.Model, Requests: w.Requests, Rows: w.Rows, OldestSeconds: w.Oldest.Seconds(), CandidateRows: w.Candidate}
		if table != nil && table.Models[w.Model] != nil {
			out.Discipline = table.Models[w.Model].Discipline
		}
		if w.Timed {
			slack := w.Slack.Seconds()
			out.SlackSeconds = &slack
		}
		objects[i] = watch.Object{Key: w.Model, Value: out}
	}
	return objects, nil
}

func (t traffic) minutes(after uint64) []watch.Entry {
	return entries(t.recent.Minutes(after, time.Now()))
}

func (t traffic) executions(after uint64) []watch.Entry {
	return entries(t.recent.Executions(after, time.Now()))
}

// entries of a log whose first one has the number first.
func entries[T any](all []T, first uint64) []watch.Entry {
	out := make([]watch.Entry, len(all))
	for i, v := range all {
		out[i] = watch.Entry{ID: first + uint64(i), Value: v} //nolint:gosec // not negative
	}
	return out
}

// Slowest implements admin.Traffic.
func (t traffic) Slowest(model string) []api.SlowRequest { return t.recent.Slowest(model, time.Now()) }
