// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package history keeps the plans that served, so that an operator can see them and
// go back to one.
package history

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

const bucket = "control.plans"

// Kept is how many plans can be gone back to.
const Kept = 100

// ErrNoPlan: the history has no plan of that number.
var ErrNoPlan = errors.New("no such plan in the history")

// Store is the history on disk.
type Store struct{ db *bbolt.DB }

// Open makes the history's place in db, if it is not there.
func Open(db *bbolt.DB) (*Store, error) {
	err := db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists([]byte(bucket))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("history of plans in the state directory: %w", err)
	}
	return &Store{db}, nil
}

func key(revision uint64) []byte { return binary.BigEndian.AppendUint64(nil, revision) }

// Add keeps a plan, and forgets what is older than the last Kept ones.
func (s *Store) Add(r api.PlanRecord) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if err := b.Put(key(r.Revision), text); err != nil {
			return err
		}
		cursor := b.Cursor()
		for k, _ := cursor.First(); k != nil && binary.BigEndian.Uint64(k)+Kept <= r.Revision; k, _ = cursor.First() {
			if err := cursor.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
}

// List gives the plans, newest first.
func (s *Store) List() ([]api.PlanRecord, error) {
	all := []api.PlanRecord{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		cursor := tx.Bucket([]byte(bucket)).Cursor()
		for k, text := cursor.Last(); k != nil; k, text = cursor.Prev() {
			var r api.PlanRecord
			if err := json.Unmarshal(text, &r); err != nil {
				return fmt.Errorf("plan %d of the history: %w", binary.BigEndian.Uint64(k), err)
			}
			all = append(all, r)
		}
		return nil
	})
	return all, err
}

// Get gives one plan.
func (s *Store) Get(revision uint64) (r api.PlanRecord, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		text := tx.Bucket([]byte(bucket)).Get(key(revision))
		if text == nil {
			return fmt.Errorf("%w: %d; tritonctl plan history shows those there are", ErrNoPlan, revision)
		}
		return json.Unmarshal(text, &r)
	})
	return r, err
}
