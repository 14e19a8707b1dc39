// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"go.etcd.io/bbolt"
)

const (
	eventBucket = "control.events"
	// eventsHeld in memory and kept on disk.
	eventsHeld = 1000
	eventsKept = 10_000
)

// eventLog keeps what happened: the last of it in memory for readers, more of
// it on disk across restarts.
type eventLog struct {
	db  *bbolt.DB
	log *slog.Logger

	mu   sync.Mutex
	last uint64
	held []Event
	// more is closed, and replaced, when an event comes.
	more chan struct{}
}

func openEvents(db *bbolt.DB, log *slog.Logger) (*eventLog, error) {
	l := &eventLog{db: db, log: log, more: make(chan struct{})}
	err := db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(eventBucket))
		if err != nil {
			return err
		}
		cursor := b.Cursor()
		for key, text := cursor.Last(); key != nil && len(l.held) < eventsHeld; key, text = cursor.Prev() {
			var e Event
			if err := json.Unmarshal(text, &e); err != nil {
				return fmt.Errorf("event %d: %w", binary.BigEndian.Uint64(key), err)
			}
			l.held = append(l.held, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("events in the state directory: %w", err)
	}
	for i, j := 0, len(l.held)-1; i < j; i, j = i+1, j-1 {
		l.held[i], l.held[j] = l.held[j], l.held[i]
	}
	if n := len(l.held); n > 0 {
		l.last = l.held[n-1].ID
	}
	return l, nil
}

// add numbers an event and keeps it. A disk that fails costs the event its
// life after a restart, nothing else.
func (l *eventLog) add(e Event) Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	e.ID = l.last
	l.held = append(l.held, e)
	if len(l.held) > 2*eventsHeld {
		l.held = append([]Event(nil), l.held[len(l.held)-eventsHeld:]...)
	}
	close(l.more)
	l.more = make(chan struct{})
	if err := l.keep(e); err != nil {
		l.log.Warn("an event could not be written to disk", "error", err)
	}
	return e
}

func (l *eventLog) keep(e Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return l.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(eventBucket))
		if e.ID > eventsKept {
			if err := b.Delete(eventKey(e.ID - eventsKept)); err != nil {
				return err
			}
		}
		return b.Put(eventKey(e.ID), text)
	})
}

func eventKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

// since returns the events after an id, and a channel that closes when there
// are more.
func (l *eventLog) since(id uint64) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var events []Event
	for _, e := range l.held[max(0, len(l.held)-eventsHeld):] {
		if e.ID > id {
			events = append(events, e)
		}
	}
	return events, l.more
}

// Events gives those after id since, oldest first, as far as they are held.
func (c *Control) Events(since uint64) []Event {
	events, _ := c.events.since(since)
	return events
}

// Follow calls yield for the events after since, then for every new one, until
// ctx ends (nil) or yield fails (its error).
func (c *Control) Follow(ctx context.Context, since uint64, yield func(Event) error) error {
	for {
		events, more := c.events.since(since)
		for _, e := range events {
			if err := yield(e); err != nil {
				return err
			}
			since = e.ID
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
	}
}
