// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/watch"
)

const (
	// watchAlive is how often an event without a change is sent on a stream of state, so that both ends notice a connection that is gone. A comment would
	// not do: browsers keep it from their pages.
	watchAlive = 15 * time.Second
	// watchPatience is how long a watcher may take nothing of what is written, watchGoodbye how long it may take for the last event.
	watchPatience = 10 * time.Second
	watchGoodbye  = time.Second
	// firstEvents are the events that a new watcher gets.
	firstEvents = 200
)

// Sources are the topics of the stream of state that conch itself answers for.
func Sources(conch API) []watch.Source {
	ctx := context.Background() // none of these waits
	return []watch.Source{
		{Topic: api.TopicConch, State: func() ([]watch.Object, error) {
			version, err := conch.Version(ctx)
			if err != nil {
				return nil, err
			}
			health, err := conch.Ready(ctx)
			return []watch.Object{{Value: api.Conch{Version: version, Health: health, MayChange: true}}}, err
		}},
		state(api.TopicModels, conch.Glance, func(m api.Model) string { return m.Name }),
		state(api.TopicGPUs, conch.GPUs, api.GPU.Key),
		state(api.TopicPartitions, conch.Partitions, api.Partition.Key),
		{Topic: api.TopicPlan, State: func() ([]watch.Object, error) {
			p, err := conch.Plan(ctx)
			return []watch.Object{{Value: p}}, err
		}},
		{Topic: api.TopicEvents, First: firstEvents, Since: func(after uint64) []watch.Entry {
			events, err := conch.Events(ctx, after)
			if err != nil {
				return nil // of a log in memory there is none
			}
			return each(events, func(e api.Event) watch.Entry { return watch.Entry{ID: e.ID, Value: e} })
		}},
	}
}

// state is a topic whose objects are a list.
func state[T any](topic api.Topic, list func(context.Context) ([]T, error), key func(T) string) watch.Source {
	return watch.Source{Topic: topic, State: func() ([]watch.Object, error) {
		all, err := list(context.Background())
		return each(all, func(v T) watch.Object { return watch.Object{Key: key(v), Value: v} }), err
	}}
}

// watch streams state until the caller goes, does not read, or conch stops.
func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	topics := make([]api.Topic, 0, len(query["topic"]))
	for _, name := range query["topic"] {
		topics = append(topics, api.Topic(name))
	}
	watcher, err := s.watchers.Watch(topics, r.Header.Get("Last-Event-ID"))
	if err != nil {
		s.fail(w, err)
		return
	}
	defer watcher.Close()
	out := http.NewResponseController(w)
	defer func() { _ = out.SetWriteDeadline(time.Time{}) }() // the connection may serve another request
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy that buffers would hold the events back
	write := func(text []byte, within time.Duration) bool {
		if err := out.SetWriteDeadline(time.Now().Add(within)); err != nil {
			s.log.Error("a stream of state has no deadline", "error", err)
			return false
		}
		if _, err := w.Write(text); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	if !write(nil, watchPatience) {
		return
	}
	alive := time.NewTicker(watchAlive)
	defer alive.Stop()
	shut, begun := onlyLooks(r), false
	for text := []byte(nil); ; text = text[:0] {
		select {
		case <-watcher.Ready():
			events, end := watcher.Take()
			begun = begun || len(events) > 0
			for _, e := range events {
				if shut && e.Topic == api.TopicConch {
					e.Data = withoutOrders(e.Data)
				}
				text = appendEvent(text, e.Topic, e.ID, e.Data)
			}
			if end != nil {
				write(appendEnd(text, *end), watchGoodbye)
				return
			}
			if !write(text, watchPatience) {
				return
			}
		case <-alive.C:
			if !begun { // who does not have the state yet would take it for an empty one
				continue
			}
			e := watcher.Alive()
			if !write(appendEvent(text, e.Topic, e.ID, e.Data), watchPatience) {
				return
			}
		case <-r.Context().Done():
			// Conch stops, or the caller has gone, who does not read this.
			write(appendEnd(text, api.End{Reason: "stopping", Message: "conch stops"}), watchGoodbye)
			return
		}
	}
}

// appendEvent appends a server-sent event. JSON has no line breaks.
func appendEvent(text []byte, topic api.Topic, id string, data []byte) []byte {
	text = append(append(text, "event: "...), topic...)
	if id != "" {
		text = append(append(text, "\nid: "...), id...)
	}
	text = append(append(text, "\ndata: "...), data...)
	return append(text, "\n\n"...)
}

func appendEnd(text []byte, end api.End) []byte {
	data, _ := json.Marshal(end) // strings can be encoded
	return appendEvent(text, api.TopicEnd, "", data)
}

// withoutOrders is an update of the topic conch for a door that takes no orders.
func withoutOrders(data []byte) []byte {
	return bytes.ReplaceAll(data, []byte(`"may_change":true`), []byte(`"may_change":false`))
}
