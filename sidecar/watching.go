// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"time"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/observe/recent"
	"github.com/conch-serving/conch/sidecar/watch"
)

// stopWatching is how long the streams of state may take to say that conch stops.
const stopWatching = 2 * time.Second

// newWatchers makes the stream of state: what the admin API answers, and what the request path shows.
func (s *server) newWatchers(conch admin.API) *watch.Hub {
	traffic := s.traffic()
	return watch.New(watch.Options{
		Sources: append(admin.Sources(conch),
			watch.Source{Topic: api.TopicRequests, State: traffic.requests},
			watch.Source{Topic: api.TopicWaiting, State: traffic.waiting},
			watch.Source{Topic: api.TopicExecutions, Since: traffic.executions, First: recent.ExecutionsKept},
		),
		Epoch: strconv.FormatInt(time.Now().UnixMicro(), 36), Now: time.Now, Logger: s.log.With("part", "watch"),
	})
}

// traffic is what the request path has to show to those who watch.
type traffic struct {
	dispatcher *dispatch.Dispatcher
	recent     *recent.Recorder
}

func (s *server) traffic() traffic { return traffic{s.dispatcher, s.recent} }

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

func (t traffic) executions(after uint64) []watch.Entry {
	all, first := t.recent.Executions(after, time.Now())
	entries := make([]watch.Entry, len(all))
	for i, e := range all {
		entries[i] = watch.Entry{ID: first + uint64(i), Value: e} //nolint:gosec // not negative
	}
	return entries
}

// Slowest implements admin.Traffic.
func (t traffic) Slowest(model string) []api.SlowRequest { return t.recent.Slowest(model, time.Now()) }
