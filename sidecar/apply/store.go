// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/plugins/policy"
)

// Store keeps the desired state over restarts. Save is durable when it returns.
type Store interface {
	Save(desired []byte) error
	// Load returns nil where nothing was saved.
	Load() ([]byte, error)
}

// NewStore keeps it in a bucket of its own.
func NewStore(in store.Store) Store { return bucket{in} }

type bucket struct{ in store.Store }

const (
	desiredBucket = "desired"
	desiredKey    = "present"
)

func (b bucket) Save(desired []byte) error {
	return b.in.Write(store.Change{Bucket: desiredBucket, Key: desiredKey, Value: desired})
}

func (b bucket) Load() ([]byte, error) { return b.in.Get(desiredBucket, desiredKey) }

// record is a Desired on disk. Messages are in protobuf's own encoding: newer
// fields survive an older conch.
type record struct {
	Generation uint64 `json:"generation"`
	Number     uint64 `json:"number,omitempty"`
	Snapshot   []byte `json:"snapshot"`
	Plan       []byte `json:"plan"`
	// Revision of the repository, and those before it that may still be loaded.
	Revision    string    `json:"revision"`
	Before      []string  `json:"before,omitempty"`
	Given       bool      `json:"given,omitempty"`
	PassThrough string    `json:"pass_through,omitempty"`
	Author      string    `json:"author"`
	Reason      string    `json:"reason"`
	Time        time.Time `json:"time"`
}

// save writes a desired state down.
func save(s Store, d *Desired, before []string) error {
	r := record{
		Generation: d.Generation, Number: d.Number, Revision: d.Revision.ID, Before: before, Given: d.Given, PassThrough: d.PassThrough,
		Author: d.Author, Reason: d.Reason, Time: d.Time,
	}
	var err error
	if r.Snapshot, err = (proto.MarshalOptions{Deterministic: true}).Marshal(d.Snapshot); err != nil {
		return fmt.Errorf("desired state: snapshot: %w", err)
	}
	if r.Plan, err = (proto.MarshalOptions{Deterministic: true}).Marshal(d.Plan); err != nil {
		return fmt.Errorf("desired state: plan: %w", err)
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = s.Save(text)
	}
	if err != nil {
		return fmt.Errorf("the desired state could not be written down, so that nothing was changed: %w", err)
	}
	return nil
}

// load reads the desired state, less its Revision; nil where there is none.
func load(s Store) (*Desired, *record, error) {
	text, err := s.Load()
	if err != nil || text == nil {
		return nil, nil, err
	}
	var r record
	d := &Desired{Snapshot: &policy.Snapshot{}, Plan: &policy.Plan{}}
	if err = json.Unmarshal(text, &r); err == nil {
		err = proto.Unmarshal(r.Snapshot, d.Snapshot)
	}
	if err == nil {
		err = proto.Unmarshal(r.Plan, d.Plan)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("desired state: %w", err)
	}
	d.Generation, d.Number, d.Given, d.PassThrough, d.Author, d.Reason, d.Time = r.Generation, r.Number, r.Given, r.PassThrough, r.Author, r.Reason, r.Time
	return d, &r, nil
}
