// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package history keeps the plans that served, so that an operator can see them and
// go back to one.
package history

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Plans for models that load on demand have a bucket of their own: there may be
// dozens a second, which must not displace the plans that an operator may go back to.
const (
	bucket       = "control.plans"
	demandBucket = "control.plans.demand"
)

// Kept is how many plans of each of the two kinds can be gone back to.
const Kept = 100

// ErrNoPlan says that the history has no plan of that number.
var ErrNoPlan = errors.New("no such plan in the history")

// Store is the history on disk.
type Store struct{ db *bbolt.DB }

// Open makes the history's place in db, if it is not there.
func Open(db *bbolt.DB) (*Store, error) {
	err := db.Update(func(tx *bbolt.Tx) error {
		for _, name := range buckets() {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("history of plans in the state directory: %w", err)
	}
	return &Store{db}, nil
}

func buckets() [][]byte { return [][]byte{[]byte(bucket), []byte(demandBucket)} }

func key(revision uint64) []byte { return binary.BigEndian.AppendUint64(nil, revision) }

// Add keeps a plan, and forgets what is older than the last Kept ones of its kind.
func (s *Store) Add(r api.PlanRecord) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	name := bucket
	if r.Demand {
		name = demandBucket
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(name))
		if err := b.Put(key(r.Revision), text); err != nil {
			return err
		}
		kept := 0
		cursor := b.Cursor()
		for k, _ := cursor.Last(); k != nil; k, _ = cursor.Prev() {
			if kept++; kept <= Kept {
				continue
			}
			if err := cursor.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
}

// List gives the plans of both kinds, newest first.
func (s *Store) List() ([]api.PlanRecord, error) {
	all := []api.PlanRecord{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		for _, name := range buckets() {
			err := tx.Bucket(name).ForEach(func(k, text []byte) error {
				var r api.PlanRecord
				if err := json.Unmarshal(text, &r); err != nil {
					return fmt.Errorf("plan %d of the history: %w", binary.BigEndian.Uint64(k), err)
				}
				all = append(all, r)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b api.PlanRecord) int { return cmp.Compare(b.Revision, a.Revision) })
	return all, err
}

// Get gives one plan.
func (s *Store) Get(revision uint64) (r api.PlanRecord, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		for _, name := range buckets() {
			if text := tx.Bucket(name).Get(key(revision)); text != nil {
				return json.Unmarshal(text, &r)
			}
		}
		return fmt.Errorf("%w: %d; tritonctl plan history shows those there are", ErrNoPlan, revision)
	})
	return r, err
}
