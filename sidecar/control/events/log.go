// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

const (
	bucket = "control.events"
	// held in memory and kept on disk.
	held = 1000
	kept = 10_000
)

// Log keeps what happened: the last of it in memory for readers, more of
// it on disk across restarts.
type Log struct {
	store store.Store
	log   *slog.Logger

	mu     sync.Mutex
	last   uint64
	recent []api.Event
}

// Open reads the log of an earlier conch.
func Open(in store.Store, log *slog.Logger) (*Log, error) {
	l := &Log{store: in, log: log}
	return l, l.Reload()
}

// Reload reads what another conch has added since.
func (l *Log) Reload() error {
	ids, err := l.store.Keys(bucket)
	if err != nil {
		return fmt.Errorf("events in the state directory: %w", err)
	}
	var recent []api.Event
	for _, id := range ids[max(0, len(ids)-held):] {
		var e api.Event
		text, err := l.store.Get(bucket, id)
		if err == nil {
			err = json.Unmarshal(text, &e)
		}
		if err != nil {
			return fmt.Errorf("events in the state directory: event %d: %w", binary.BigEndian.Uint64([]byte(id)), err)
		}
		recent = append(recent, e)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent, l.last = recent, 0
	if n := len(recent); n > 0 {
		l.last = recent[n-1].ID
	}
	return nil
}

// Add numbers an event and keeps it. A disk that fails costs the event its
// life after a restart, nothing else.
func (l *Log) Add(e api.Event) api.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	e.ID = l.last
	l.recent = append(l.recent, e)
	if len(l.recent) > 2*held {
		l.recent = append([]api.Event(nil), l.recent[len(l.recent)-held:]...)
	}
	if err := l.keep(e); err != nil {
		l.log.Warn("an event could not be written to disk", "error", err)
	}
	return e
}

func (l *Log) keep(e api.Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	changes := []store.Change{{Bucket: bucket, Key: key(e.ID), Value: text}}
	if e.ID > kept {
		changes = append(changes, store.Change{Bucket: bucket, Key: key(e.ID - kept)})
	}
	return l.store.Later(changes...)
}

func key(id uint64) string { return string(binary.BigEndian.AppendUint64(nil, id)) }

// Since gives the events after id, oldest first, as far as they are held.
func (l *Log) Since(id uint64) []api.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var events []api.Event
	for _, e := range l.recent[max(0, len(l.recent)-held):] {
		if e.ID > id {
			events = append(events, e)
		}
	}
	return events
}
