// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package orders is what operators declared and a restart does not undo.
package orders

import (
	"encoding/json"
	"fmt"
	"sync"

	"go.etcd.io/bbolt"
)

// Declared is all of it.
type Declared struct {
	// Released: attached servers were given back; mode is observe.
	Released bool `json:"released,omitempty"`
}

const (
	bucket = "control.orders"
	key    = "declared"
)

// Store keeps what is declared.
type Store struct {
	db *bbolt.DB
	mu sync.Mutex
	// now is never changed in place.
	now Declared
}

// Open reads what an earlier conch was told.
func Open(db *bbolt.DB) (*Store, error) {
	s := &Store{db: db}
	err := db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		if text := b.Get([]byte(key)); text != nil {
			return json.Unmarshal(text, &s.now)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("orders in the state directory: %w; remove the state directory to start over", err)
	}
	return s, nil
}

// Declared is what holds now; it must not be changed.
func (s *Store) Declared() Declared {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Declare changes what holds. It is on disk when nil is returned; else nothing
// was changed.
func (s *Store) Declare(change func(*Declared)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.now.clone()
	change(&next)
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	err = s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(key), text) })
	if err != nil {
		return fmt.Errorf("the order could not be written to the state directory, and nothing was changed: %w", err)
	}
	s.now = next
	return nil
}

func (d Declared) clone() Declared { return d }
