// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Stage makes directory dir hold the named models of a revision (the current
// one for an empty id), each with the config.pbtxt that Conch serves with.
// Other models in it stay. A model appears or changes as a whole, by a rename;
// one that is already staged as wanted is not touched, so that Triton does not
// load it again. Calls for one directory take turns.
//
// Beside dir lie dir.staged.json, which says what is staged, and for a moment
// dir.tmp: a server would take anything inside for a model.
func (s *Store) Stage(ctx context.Context, revision string, models []string, dir string) error {
	r, err := s.revision(revision)
	if err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	stage := staged{dir}
	defer s.staging.lock(dir)()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	known, err := stage.known()
	if err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	for _, name := range models {
		m := r.Model(name)
		if m == nil {
			return fmt.Errorf("stage %q of %s: %w", name, r.ID, ErrNoModel)
		}
		if err := m.Err(); err != nil {
			return fmt.Errorf("stage %q of %s: %w", name, r.ID, err)
		}
		if known[name] == stageDigest(m) && intact(filepath.Join(dir, name), m) {
			continue
		}
		// The note is true or absent at every moment.
		delete(known, name)
		if err := stage.note(known); err != nil {
			return fmt.Errorf("stage %q of %s: %w", name, r.ID, err)
		}
		if err := s.stageModel(ctx, m, stage); err != nil {
			return fmt.Errorf("stage %q of %s: %w", name, r.ID, err)
		}
		known[name] = stageDigest(m)
		if err := stage.note(known); err != nil {
			return fmt.Errorf("stage %q of %s: %w", name, r.ID, err)
		}
	}
	return nil
}

// intact reports that every file of a staged model is there with its size, which a
// machine that lost its power need not have written.
func intact(dir string, m *Model) bool {
	if _, err := os.Stat(dir); err != nil {
		return false
	}
	for _, f := range m.Files {
		size := f.Size
		if f.Path == ConfigFile {
			size = m.Managed.Size + int64(len(m.stagedParameter()))
		}
		if info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(f.Path))); err != nil || info.Size() != size {
			return false
		}
	}
	return true
}

func (s *Store) stageModel(ctx context.Context, m *Model, stage staged) (err error) {
	tmp, err := stage.temporary()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stage.tmp())) }()
	model := filepath.Join(tmp, m.Name)
	for _, v := range m.Versions {
		// A version directory may be empty: some backends need no file in it.
		if err := os.MkdirAll(filepath.Join(model, strconv.FormatInt(v, 10)), 0o755); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		to := filepath.Join(model, filepath.FromSlash(f.Path))
		if f.Path == ConfigFile {
			if err := s.stageConfig(m, to); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := s.files.place(ctx, f, to); err != nil {
			return err
		}
	}
	return swap(model, filepath.Join(stage.dir, m.Name))
}

// stageConfig writes the managed config with the model's revision in it, at its
// end, where it touches nothing that its author wrote.
func (s *Store) stageConfig(m *Model, to string) error {
	text, err := os.ReadFile(s.files.path(m.Managed))
	if err != nil {
		return err
	}
	return os.WriteFile(to, append(text, m.stagedParameter()...), 0o644)
}

// stagedParameter is the model's revision as it is put at the end of its config.
func (m *Model) stagedParameter() string {
	return fmt.Sprintf("\nparameters { key: %q value { string_value: %q } }\n", RevisionParameter, m.StagedRevision())
}

// Unstage removes the named models from a staged directory; without names, the
// whole directory and what lies beside it. What is not there is no error.
func (s *Store) Unstage(_ context.Context, dir string, models ...string) error {
	stage := staged{dir}
	defer s.staging.lock(dir)()
	if len(models) == 0 {
		if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(stage.tmp()), remove(stage.notes())); err != nil {
			return fmt.Errorf("unstage: %w", err)
		}
		return nil
	}
	known, err := stage.known()
	if err != nil {
		return fmt.Errorf("unstage: %w", err)
	}
	for _, name := range models {
		delete(known, name)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := stage.note(known); err != nil {
		return fmt.Errorf("unstage: %w", err)
	}
	for _, name := range models {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("unstage %q: %w", name, err)
		}
	}
	return nil
}

// Staged lists the models of a staged directory, sorted.
func (s *Store) Staged(dir string) ([]string, error) {
	known, err := staged{dir}.known()
	if err != nil {
		return nil, fmt.Errorf("staged models: %w", err)
	}
	return slices.Sorted(maps.Keys(known)), nil
}

// staged is a directory that Stage fills, with what lies beside it.
type staged struct{ dir string }

func (s staged) notes() string { return s.dir + ".staged.json" }
func (s staged) tmp() string   { return s.dir + ".tmp" }

func (s staged) temporary() (string, error) {
	if err := os.MkdirAll(s.tmp(), 0o755); err != nil {
		return "", err
	}
	return os.MkdirTemp(s.tmp(), "")
}

// known maps the names of the staged models to their stageDigest.
func (s staged) known() (map[string]string, error) {
	known := map[string]string{}
	text, err := os.ReadFile(s.notes())
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 { // a machine that lost its power need not have written it
		return known, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it and what is staged beside it", s.notes(), err)
	}
	return known, nil
}

func (s staged) note(known map[string]string) error {
	text, err := json.Marshal(known)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.notes()+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(s.notes()+".new", s.notes())
}

func stageDigest(m *Model) string { return m.Revision() + "+" + m.Managed.Digest }

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// swapInTwo moves what is at to aside and then from into its place; between the
// two there is nothing.
func swapInTwo(from, to string) error {
	aside := from + ".old"
	if err := os.Rename(to, aside); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return errors.Join(err, os.Rename(aside, to))
	}
	return nil
}
