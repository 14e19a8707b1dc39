// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"

	"go.etcd.io/bbolt"
)

// Store keeps values by bucket and key. Its methods may be called from any goroutine.
type Store interface {
	// Get is the value of a key; nil where there is none.
	Get(bucket, key string) ([]byte, error)
	// Keys are those of a bucket, in the order of their bytes.
	Keys(bucket string) ([]string, error)
	// Write makes all changes, or none and returns an error. They are durable when it returns.
	Write(changes ...Change) error
	// Later is Write of what may be lost where the process or its machine dies within seconds; Get and Keys know it at once.
	Later(changes ...Change) error
}

// Change is a new value of a key, which replaces the one before. An empty value removes the key.
type Change struct {
	Bucket, Key string
	Value       []byte
}

// Bolt is a Store in a file of this machine. Later is as durable as Write.
type Bolt struct{ db *bbolt.DB }

// NewBolt makes a Store of a database, which the caller closes.
func NewBolt(db *bbolt.DB) Bolt { return Bolt{db} }

// Get implements Store.
func (b Bolt) Get(bucket, key string) (value []byte, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		if in := tx.Bucket([]byte(bucket)); in != nil {
			value = bytes.Clone(in.Get([]byte(key)))
		}
		return nil
	})
	return value, err
}

// Keys implements Store.
func (b Bolt) Keys(bucket string) (keys []string, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		in := tx.Bucket([]byte(bucket))
		if in == nil {
			return nil
		}
		return in.ForEach(func(key, _ []byte) error {
			keys = append(keys, string(key))
			return nil
		})
	})
	return keys, err
}

// Write implements Store.
func (b Bolt) Write(changes ...Change) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		for _, c := range changes {
			in, err := tx.CreateBucketIfNotExists([]byte(c.Bucket))
			switch {
			case err != nil:
			case len(c.Value) == 0:
				err = in.Delete([]byte(c.Key))
			default:
				err = in.Put([]byte(c.Key), c.Value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Later implements Store.
func (b Bolt) Later(changes ...Change) error { return b.Write(changes...) }
