// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package orders is what operators declared and a restart does not undo.
package orders

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Declared is all of it.
type Declared struct {
	// Released: attached servers were given back; mode is observe.
	Released bool `json:"released,omitempty"`
	// Pin has the plan in force stay; nil where it need not.
	Pin *api.Pin `json:"pin,omitempty"`
	// Cordons are GPUs that take nothing new, by id.
	Cordons map[string]api.Cordon `json:"cordons,omitempty"`
	// Policy is the one that an operator put in the place of conch.yaml's; nil: that
	// of conch.yaml.
	Policy *Policy `json:"policy,omitempty"`
}

// Policy is an operator's choice of a policy.
type Policy struct {
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Over is the choice of conch.yaml that it was made over. Once conch.yaml says
	// something else, that holds.
	Over   string    `json:"over"`
	Author string    `json:"author"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

const (
	bucket = "control.orders"
	key    = "declared"
)

// Cordon cordons a GPU; nil ends that.
func (d *Declared) Cordon(gpu string, c *api.Cordon) {
	next := maps.Clone(d.Cordons)
	if next == nil {
		next = map[string]api.Cordon{}
	}
	delete(next, gpu)
	if c != nil {
		next[gpu] = *c
	}
	d.Cordons = next
}

// Store keeps what is declared.
type Store struct {
	in store.Store
	mu sync.Mutex
	// now is never changed in place.
	now Declared
}

// Open reads the orders that an earlier conch was given.
func Open(in store.Store) (*Store, error) {
	s := &Store{in: in}
	return s, s.Reload()
}

// Reload reads what another conch was ordered since.
func (s *Store) Reload() error {
	var now Declared
	text, err := s.in.Get(bucket, key)
	if err == nil && text != nil {
		err = json.Unmarshal(text, &now)
	}
	if err != nil {
		return fmt.Errorf("orders in the state directory: %w; remove the state directory to start over", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
	return nil
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
	if err := s.in.Write(store.Change{Bucket: bucket, Key: key, Value: text}); err != nil {
		return fmt.Errorf("the order could not be written to the state directory, and nothing was changed: %w", err)
	}
	s.now = next
	return nil
}

// clone is a copy that can be changed: what a pointer or a map holds is replaced, and
// never changed in place.
func (d Declared) clone() Declared { return d }
