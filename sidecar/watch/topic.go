// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Object is one object of a topic's state. Value is encoded as JSON.
type Object struct {
	Key   string
	Value any
}

// Entry is one entry of a topic that is a log. IDs are consecutive.
type Entry struct {
	ID    uint64
	Value any
}

// Source is where a topic comes from: a state, or a log. Both functions are called by one goroutine at a time, and only while somebody watches
// the topic.
type Source struct {
	Topic api.Topic
	// State returns all objects that there are, each key once.
	State func() ([]Object, error)
	// Since returns the entries after an id that are still kept, oldest first.
	Since func(after uint64) []Entry
	// First bounds the entries that a new watcher gets.
	First int
}

// frame is an event of the stream but its id, which depends on the watcher.
type frame struct {
	seq   uint64
	topic int
	data  []byte
}

// Bounds of what is kept of a topic for watchers that come back.
const (
	keptFrames = 256
	keptBytes  = 2 << 20
)

// topic is what the producer knows of a source. It is the producer's alone.
type topic struct {
	Source
	index int
	next  time.Time // of the next sample
	ever  bool      // it was sampled
	// objects are the last encodings by key, order their keys in the source's order. Of a state only.
	objects map[string][]byte
	order   []string
	// last is the id of the last entry that was sent. Of a log only.
	last uint64
	// ring are the last changes. A watcher that has all up to floor, or later, can go on from there.
	ring  []frame
	bytes int
	floor uint64
}

// change is the data of an event, and whether there is one.
type change struct {
	data []byte
	any  bool
}

// sample reads the source, and returns what has changed since the last sample.
func (t *topic) sample(now time.Time, log *slog.Logger) (c change) {
	defer func() {
		if fault := recover(); fault != nil {
			log.Error("a topic of the stream of state could not be read", "topic", t.Topic, "fault", fmt.Sprint(fault))
			c = change{}
		}
	}()
	if t.Since != nil {
		return t.follow(now, log)
	}
	objects, err := t.State()
	if err != nil {
		log.Warn("a topic of the stream of state could not be read", "topic", t.Topic, "error", err)
		return change{}
	}
	seen := make(map[string][]byte, len(objects))
	order := make([]string, 0, len(objects))
	var changed [][]byte
	for _, o := range objects {
		before := t.objects[o.Key]
		text, err := json.Marshal(o.Value)
		if err != nil {
			log.Warn("an object of the stream of state cannot be encoded", "topic", t.Topic, "object", o.Key, "error", err)
			if text = before; text == nil {
				continue
			}
		}
		if before != nil && bytes.Equal(text, before) {
			text = before
		} else {
			changed = append(changed, text)
		}
		seen[o.Key] = text
		order = append(order, o.Key)
	}
	var gone []string
	for _, key := range t.order {
		if _, stays := seen[key]; !stays {
			gone = append(gone, key)
		}
	}
	first := !t.ever
	t.objects, t.order, t.ever = seen, order, true
	if !first && len(changed) == 0 && len(gone) == 0 {
		return change{}
	}
	return change{update(now, first, changed, gone), true}
}

// follow is sample of a log. Entries that were lost since the last sample make the change a whole one.
func (t *topic) follow(now time.Time, log *slog.Logger) change {
	entries := t.Since(t.last)
	first := !t.ever
	t.ever = true
	if len(entries) == 0 {
		return change{update(now, true, nil, nil), first}
	}
	whole := first || entries[0].ID != t.last+1
	t.last = entries[len(entries)-1].ID
	if whole {
		entries = entries[max(0, len(entries)-t.First):]
	}
	return change{update(now, whole, t.encode(entries, log), nil), true}
}

func (t *topic) encode(entries []Entry, log *slog.Logger) [][]byte {
	all := make([][]byte, 0, len(entries))
	for _, e := range entries {
		text, err := json.Marshal(e.Value)
		if err != nil {
			log.Warn("an entry of the stream of state cannot be encoded", "topic", t.Topic, "entry", e.ID, "error", err)
			continue
		}
		all = append(all, text)
	}
	return all
}

// whole is the data of the event with all that was sent of a topic so far.
func (t *topic) whole(now time.Time, log *slog.Logger) (data []byte) {
	defer func() {
		if fault := recover(); fault != nil {
			log.Error("a topic of the stream of state could not be read", "topic", t.Topic, "fault", fmt.Sprint(fault))
			data = update(now, true, nil, nil)
		}
	}()
	var all [][]byte
	if t.Since != nil {
		entries := t.Since(0)
		for len(entries) > 0 && entries[len(entries)-1].ID > t.last {
			entries = entries[:len(entries)-1] // they come as a change
		}
		all = t.encode(entries[max(0, len(entries)-t.First):], log)
	} else {
		for _, key := range t.order {
			all = append(all, t.objects[key])
		}
	}
	return update(now, true, all, nil)
}

// keep puts a change into the ring.
func (t *topic) keep(f frame) {
	t.ring, t.bytes = append(t.ring, f), t.bytes+len(f.data)
	drop := 0
	for len(t.ring)-drop > keptFrames || t.bytes > keptBytes {
		t.bytes -= len(t.ring[drop].data)
		t.floor = t.ring[drop].seq
		drop++
	}
	if drop > 0 {
		t.ring = append(t.ring[:0], t.ring[drop:]...)
	}
}

// update is an api.Update as JSON, made of objects that are JSON.
func update(now time.Time, all bool, changed [][]byte, gone []string) []byte {
	size := 100
	for _, c := range changed {
		size += len(c) + 1
	}
	out := append(make([]byte, 0, size), `{"time":"`...)
	out = append(now.AppendFormat(out, time.RFC3339Nano), '"')
	if all {
		out = append(out, `,"all":true`...)
	}
	if len(changed) > 0 {
		out = append(out, `,"changed":[`...)
		for i, c := range changed {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, c...)
		}
		out = append(out, ']')
	}
	if len(gone) > 0 {
		names, _ := json.Marshal(gone) // strings can be encoded
		out = append(append(out, `,"gone":`...), names...)
	}
	return append(out, '}')
}
