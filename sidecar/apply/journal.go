// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// journal is what survives a crash: the target that serves, and the apply that
// is under way with the steps that were begun.
type journal struct{ db *bbolt.DB }

var (
	journalBucket = []byte("apply")
	stepsBucket   = []byte("apply.steps")
	servingKey    = []byte("serving")
	unfinishedKey = []byte("unfinished")
)

// record is a Target on disk. Messages are in protobuf's own encoding: newer
// fields survive an older conch.
type record struct {
	Snapshot []byte    `json:"snapshot"`
	Plan     []byte    `json:"plan"`
	Revision string    `json:"revision"`
	Author   string    `json:"author"`
	Reason   string    `json:"reason"`
	Time     time.Time `json:"time"`
	// Given is the Target's: what other people's servers serve is asked of them
	// anew.
	Given bool `json:"given,omitempty"`
}

type unfinished struct {
	Author  string    `json:"author"`
	Reason  string    `json:"reason"`
	Started time.Time `json:"started"`
}

func newJournal(db *bbolt.DB) (journal, error) {
	err := db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{journalBucket, stepsBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return journal{}, fmt.Errorf("journal: %w", err)
	}
	return journal{db}, nil
}

// begin writes down that an apply starts.
func (j journal) begin(t Target, now time.Time) error {
	text, err := json.Marshal(unfinished{Author: t.Author, Reason: t.Reason, Started: now})
	if err != nil {
		return err
	}
	return j.update(func(b, _ *bbolt.Bucket) error { return b.Put(unfinishedKey, text) })
}

// step writes down that a step is about to run.
func (j journal) step(e StepEvent) error {
	return j.update(func(_, steps *bbolt.Bucket) error {
		n, err := steps.NextSequence()
		if err != nil {
			return err
		}
		name := e.name()
		if e.Undo {
			name = "undo " + name
		}
		return steps.Put(binary.BigEndian.AppendUint64(nil, n), []byte(name))
	})
}

// serve makes t what serves, in the same transaction that ends what could still
// be undone.
func (j journal) serve(t Target, now time.Time) error {
	snapshot, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.Snapshot)
	if err != nil {
		return err
	}
	plan, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.Plan)
	if err != nil {
		return err
	}
	text, err := json.Marshal(record{Snapshot: snapshot, Plan: plan, Revision: t.Revision.ID, Author: t.Author, Reason: t.Reason, Time: now, Given: t.Given})
	if err != nil {
		return err
	}
	return j.update(func(b, _ *bbolt.Bucket) error { return b.Put(servingKey, text) })
}

// end writes down that nothing is under way.
func (j journal) end() error {
	return j.update(func(b, steps *bbolt.Bucket) error {
		if err := b.Delete(unfinishedKey); err != nil {
			return err
		}
		var keys [][]byte
		err := steps.ForEach(func(k, _ []byte) error {
			keys = append(keys, bytes.Clone(k))
			return nil
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			if err := steps.Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
}

func (j journal) update(f func(b, steps *bbolt.Bucket) error) error {
	err := j.db.Update(func(tx *bbolt.Tx) error { return f(tx.Bucket(journalBucket), tx.Bucket(stepsBucket)) })
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// read is what the journal holds: the target that served, nil at the very
// first start, and the apply that was cut off, nil after a clean end.
func (j journal) read() (*Target, string, *Interrupted, error) {
	var served *record
	var cut *Interrupted
	err := j.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(journalBucket)
		if text := b.Get(servingKey); text != nil {
			served = &record{}
			if err := json.Unmarshal(text, served); err != nil {
				return err
			}
		}
		text := b.Get(unfinishedKey)
		if text == nil {
			return nil
		}
		var u unfinished
		if err := json.Unmarshal(text, &u); err != nil {
			return err
		}
		cut = &Interrupted{Started: u.Started, Author: u.Author, Reason: u.Reason}
		return tx.Bucket(stepsBucket).ForEach(func(_, name []byte) error {
			cut.Steps, cut.Last = cut.Steps+1, string(name)
			return nil
		})
	})
	if err != nil || served == nil || served.Given {
		return nil, "", cut, wrap("read the journal", err)
	}
	t := &Target{Snapshot: &policy.Snapshot{}, Plan: &policy.Plan{}, Author: served.Author, Reason: served.Reason}
	if err := proto.Unmarshal(served.Snapshot, t.Snapshot); err != nil {
		return nil, "", cut, wrap("read the journal's snapshot", err)
	}
	if err := proto.Unmarshal(served.Plan, t.Plan); err != nil {
		return nil, "", cut, wrap("read the journal's plan", err)
	}
	return t, served.Revision, cut, nil
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
