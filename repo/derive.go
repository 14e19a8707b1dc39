// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/conch-serving/conch/internal/modeldir"
)

// ErrStale says that a derived model was made of members that are others by now.
var ErrStale = errors.New("a member changed since the derived model was made")

// Derivation says what a derived model was made of: which recipe, from which content.
type Derivation struct {
	// Recipe is the name of the derived model, and Mode how it was made.
	Recipe string `json:"recipe"`
	Mode   string `json:"mode,omitempty"`
	// Digest is what its maker calls recipe and members' content together.
	Digest string `json:"digest"`
	// Members are the digests of the models that it was made of, by name.
	Members map[string]string `json:"members"`
	// Parts are the models that it consists of, all of them in the revision.
	Parts []string `json:"parts"`
	// Rows says of a merge group whose its rows are: RowInput is the input that holds a member's place in Rows for each row.
	Rows     []RowOf `json:"rows,omitempty"`
	RowInput string  `json:"row_input,omitempty"`
	// SharedBytes are the weights that the members share.
	SharedBytes int64 `json:"shared_bytes,omitempty"`
}

// RowOf is a member of a merge group as its rows have it.
type RowOf struct {
	Name string `json:"name"`
	// Version is the one that was merged.
	Version string `json:"version"`
	// Outputs are the group's names of the member's outputs.
	Outputs map[string]string `json:"outputs"`
}

// MemberNames are those whose rows a merge group has; none of anything else, nil included.
func (d *Derivation) MemberNames() []string {
	if d == nil {
		return nil
	}
	var names []string
	for _, r := range d.Rows {
		names = append(names, r.Name)
	}
	return names
}

// Derive adds a derived model to the current revision: its parts are the model directories of dir, one for each name in d.Parts. They
// replace those of an earlier making of the same recipe. The parts stay through imports and rollbacks for as long as every member has the
// content that it was made of; a revision in which one has not leaves all parts out and names the recipe in Stale, for the caller that makes it
// again.
//
// The error wraps ErrStale where a member is not the one that d names, ErrNoModel where it is not there, ErrInvalidModel where Triton
// would refuse a part.
func (s *Store) Derive(ctx context.Context, dir string, d Derivation, by Origin) (*Revision, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	before, err := s.Current()
	if err != nil {
		return nil, fmt.Errorf("derive %q: %w", d.Recipe, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("derive %q: %w", d.Recipe, err)
	}
	for name, digest := range d.Members {
		switch m := before.Model(name); {
		case m == nil:
			return nil, fmt.Errorf("derive %q: %w: member %q", d.Recipe, ErrNoModel, name)
		case m.Digest != digest:
			return nil, fmt.Errorf("derive %q: %w: member %q", d.Recipe, ErrStale, name)
		}
	}
	models := slices.DeleteFunc(slices.Clone(before.Models), func(m *Model) bool { return m.Derived != nil && m.Derived.Recipe == d.Recipe })
	seen := seen{now: by.Time, fresh: map[string]File{}}
	for _, name := range d.Parts {
		if !isModelName(name) {
			return nil, fmt.Errorf("derive %q: %w: a part called %q", d.Recipe, ErrNoModel, name)
		}
		if slices.ContainsFunc(models, func(m *Model) bool { return m.Name == name }) {
			return nil, fmt.Errorf("derive %q: the repository has another model %q", d.Recipe, name)
		}
		m, err := s.readModel(ctx, modeldir.FS(dir), dir, name, seen)
		if err != nil {
			return nil, fmt.Errorf("derive %q: part %q: %w", d.Recipe, name, err)
		}
		if err := m.Err(); err != nil {
			return nil, fmt.Errorf("derive %q: part %q: %w", d.Recipe, name, err)
		}
		m.Derived = &d
		models = replace(models, m)
	}
	return s.commit(&Revision{Origin: by, Directory: before.Directory, Held: before.Held, Models: models}, true)
}

// settle leaves out the parts of derived models whose members, or whose other parts, are not what they were made of.
func settle(models []*Model) (kept []*Model, stale []Derivation) {
	digests, made := map[string]string{}, map[string]string{}
	for _, m := range models {
		digests[m.Name] = m.Digest
		if m.Derived != nil {
			made[m.Name] = m.Derived.Digest
		}
	}
	holds := func(d *Derivation) bool {
		for name, digest := range d.Members {
			if digests[name] != digest {
				return false
			}
		}
		return !slices.ContainsFunc(d.Parts, func(part string) bool { return made[part] != d.Digest })
	}
	for _, m := range models {
		switch {
		case m.Derived == nil || holds(m.Derived):
			kept = append(kept, m)
		case !slices.ContainsFunc(stale, func(d Derivation) bool { return d.Recipe == m.Derived.Recipe }):
			stale = append(stale, *m.Derived)
		}
	}
	return kept, stale
}
