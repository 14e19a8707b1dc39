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

	"github.com/conch-serving/conch/internal/store"
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

// Store is the history as it is kept.
type Store struct{ in store.Store }

// New is the history that a store keeps.
func New(in store.Store) *Store { return &Store{in} }

func buckets() []string { return []string{bucket, demandBucket} }

func key(revision uint64) string { return string(binary.BigEndian.AppendUint64(nil, revision)) }

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
	keys, err := s.in.Keys(name)
	if err != nil {
		return err
	}
	changes := []store.Change{{Bucket: name, Key: key(r.Revision), Value: text}}
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == changes[0].Key })
	for _, old := range keys[:max(0, len(keys)+1-Kept)] {
		changes = append(changes, store.Change{Bucket: name, Key: old})
	}
	return s.in.Later(changes...)
}

// List gives the plans of both kinds, newest first.
func (s *Store) List() ([]api.PlanRecord, error) {
	all := []api.PlanRecord{}
	for _, name := range buckets() {
		keys, err := s.in.Keys(name)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			text, err := s.in.Get(name, k)
			if err != nil {
				return nil, err
			}
			var r api.PlanRecord
			switch err := json.Unmarshal(text, &r); {
			case text == nil: // it was the oldest, and another one came since
			case err != nil:
				return nil, fmt.Errorf("plan %d of the history: %w", binary.BigEndian.Uint64([]byte(k)), err)
			default:
				all = append(all, r)
			}
		}
	}
	slices.SortFunc(all, func(a, b api.PlanRecord) int { return cmp.Compare(b.Revision, a.Revision) })
	return all, nil
}

// Get gives one plan.
func (s *Store) Get(revision uint64) (r api.PlanRecord, err error) {
	for _, name := range buckets() {
		text, err := s.in.Get(name, key(revision))
		if err != nil {
			return r, err
		}
		if text != nil {
			return r, json.Unmarshal(text, &r)
		}
	}
	return r, fmt.Errorf("%w: %d; tritonctl plan history shows those there are", ErrNoPlan, revision)
}
