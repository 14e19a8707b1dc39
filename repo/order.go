// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/protocolbuffers/txtpbfmt/parser"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Order is a client's order to load one model, as Triton's model repository
// extension has it.
type Order struct {
	Model string
	// Config is a whole model configuration as JSON, in place of the operator's
	// config.pbtxt; nil for none. Nothing of the file is merged into it.
	Config *string
	// Files, by their path in the model directory, take the place of the whole
	// directory. They need a Config.
	Files map[string][]byte
}

// Load makes a revision in which one model is as a client orders it: read from
// the repository dir again, or overridden. The other models are those of the
// revision named onto. Members of an ensemble are loaded with it.
//
// As with Triton, a plain load keeps the config of an earlier order while the
// operator's files are unchanged, forgets files of an earlier order, and loads
// again what has the same content but other times. Where nothing changes, the
// current revision is returned.
//
// The error wraps ErrNoModel where there is nothing to load, ErrOverride where
// the order makes no model, ErrInvalidModel where Triton would refuse it; no
// revision is made then.
func (s *Store) Load(ctx context.Context, onto, dir string, o Order, by Origin) (*Revision, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	before, err := s.revision(onto)
	if err != nil {
		return nil, fmt.Errorf("load %q: %w", o.Model, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("load %q: %w", o.Model, err)
	}
	seen := seen{now: by.Time, fresh: map[string]File{}}
	m, err := s.ordered(ctx, dir, before.Model(o.Model), o, seen)
	if err != nil {
		return nil, fmt.Errorf("load %q: %w", o.Model, err)
	}
	m.Dependent = false
	models := replace(before.Models, m)
	for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
		if name := step.GetModelName(); name != o.Model && isModelName(name) {
			member, err := s.ordered(ctx, dir, before.Model(name), Order{Model: name}, seen)
			if errors.Is(err, ErrNoModel) {
				continue // reported for the ensemble below
			}
			if err != nil {
				return nil, fmt.Errorf("load %q, called by %q: %w", name, o.Model, err)
			}
			was := before.Model(name)
			member.Dependent = was == nil || was.Unloaded || was.Dependent
			models = replace(models, member)
		}
	}
	found, err := s.ensembles(models)
	if err != nil {
		return nil, fmt.Errorf("load %q: %w", o.Model, err)
	}
	m.found(found[o.Model])
	if err := m.Err(); err != nil {
		return nil, fmt.Errorf("load %q: %w", o.Model, err)
	}
	if err := s.remember(seen.fresh); err != nil {
		return nil, fmt.Errorf("load %q: %w", o.Model, err)
	}
	return s.commit(&Revision{Origin: by, Directory: before.Directory, Held: before.Held, Models: models}, true)
}

// Unload makes a revision in which the named models are not served. The other
// models are those of the revision named onto; names that it does not have are
// passed over. Where nothing changes, the current revision is returned.
func (s *Store) Unload(_ context.Context, onto string, models []string, by Origin) (*Revision, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	before, err := s.revision(onto)
	if err != nil {
		return nil, fmt.Errorf("unload %s: %w", strings.Join(models, ", "), err)
	}
	after := before.Models
	for _, name := range models {
		if m := before.Model(name); m != nil && !m.Unloaded {
			unloaded := *m
			unloaded.Unloaded = true
			after = replace(after, &unloaded)
		}
	}
	return s.commit(&Revision{Origin: by, Directory: before.Directory, Held: before.Held, Models: after}, true)
}

// Revert makes a revision in which what an order changed from the revision before
// it is as it was then. The other models are those of the revision named onto, and
// so are those that changed again after the order.
func (s *Store) Revert(_ context.Context, onto, order, before string, by Origin) (*Revision, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	var revisions [3]*Revision
	for i, id := range []string{onto, order, before} {
		var err error
		if revisions[i], err = s.revision(id); err != nil {
			return nil, fmt.Errorf("revert %s: %w", order, err)
		}
	}
	now, ordered, was := revisions[0], revisions[1], revisions[2]
	names := map[string]bool{}
	for _, r := range []*Revision{ordered, was} {
		for _, m := range r.Models {
			names[m.Name] = true
		}
	}
	models := now.Models
	for name := range names {
		if same(ordered.Model(name), was.Model(name)) || !same(now.Model(name), ordered.Model(name)) {
			continue
		}
		if m := was.Model(name); m != nil {
			models = replace(models, m)
		} else {
			models = slices.DeleteFunc(slices.Clone(models), func(m *Model) bool { return m.Name == name })
		}
	}
	return s.commit(&Revision{Origin: by, Directory: now.Directory, Held: now.Held, Models: models}, false)
}

// same reports whether two states of a model (nil: there is none) are one.
func same(a, b *Model) bool {
	if a == nil || b == nil {
		return a == b
	}
	return compare([]*Model{a}, []*Model{b}).Empty() && sameRemarks([]*Model{a}, []*Model{b})
}

// ordered is one model as ordered, where was is what it is now (nil: nothing).
func (s *Store) ordered(ctx context.Context, dir string, was *Model, o Order, seen seen) (*Model, error) {
	if !isModelName(o.Model) {
		return nil, fmt.Errorf("%w: %q names no directory of the model repository", ErrNoModel, o.Model)
	}
	disk, err := s.onDisk(ctx, dir, o.Model, seen)
	if err != nil {
		return nil, err
	}
	m := disk
	switch {
	case o.Config == nil && len(o.Files) > 0:
		return nil, fmt.Errorf("%w: files are given without a config", ErrOverride)
	case o.Config != nil:
		if m, err = s.overridden(ctx, dir, disk, o, seen); err != nil {
			return nil, err
		}
	case disk == nil:
		return nil, fmt.Errorf("%w: no directory is called %q in %s", ErrNoModel, o.Model, dir)
	case was != nil && !was.Unloaded && was.Override != nil && !was.Override.Directory && was.Override.Base == base(disk):
		same := *was
		return &same, nil
	}
	if was != nil {
		m.Generation = was.Generation
		if !was.Unloaded && was.Override == nil && m.Override == nil && was.Digest == m.Digest && was.Times != m.Times {
			m.Generation++
		}
	}
	return m, nil
}

// onDisk reads the operator's directory of a model; nil where there is none.
func (s *Store) onDisk(ctx context.Context, dir, model string, seen seen) (*Model, error) {
	info, err := os.Stat(filepath.Join(dir, model))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // that there is none is an answer
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, nil //nolint:nilnil // a file is no model
	}
	return s.readModel(ctx, modeldir.FS(dir), dir, model, seen)
}

// overridden reads a directory that is laid out for the purpose: the order's
// config over the operator's files, or over the order's own.
func (s *Store) overridden(ctx context.Context, dir string, disk *Model, o Order, seen seen) (m *Model, err error) {
	text, err := configText(*o.Config, o.Model)
	if err != nil {
		return nil, err
	}
	if disk == nil && len(o.Files) == 0 {
		return nil, fmt.Errorf("%w: no directory is called %q in %s, and no files are given", ErrNoModel, o.Model, dir)
	}
	scratch, err := os.MkdirTemp("", "conch-override-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	at := filepath.Join(scratch, o.Model)
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, err
	}
	if err = lay(at, o.Files); err != nil {
		return nil, err
	}
	if err = os.WriteFile(filepath.Join(at, ConfigFile), text, 0o600); err != nil {
		return nil, err
	}
	fsys, from := modeldir.FS(scratch), scratch
	if len(o.Files) == 0 {
		fsys, from = configured{FS: modeldir.FS(dir), config: fsys, model: o.Model}, dir
	}
	if m, err = s.readModel(ctx, fsys, from, o.Model, seen); err != nil {
		return nil, err
	}
	m.Override = &Override{Directory: len(o.Files) > 0}
	m.Times = ""
	if disk != nil {
		m.Override.Base, m.Times = base(disk), disk.Times
	}
	return m, nil
}

// configText is a config of a load as a config.pbtxt, in one form for one
// meaning: equal configs must not look like a change.
func configText(config, model string) ([]byte, error) {
	c := &tritonpb.ModelConfig{}
	if err := protojson.Unmarshal([]byte(config), c); err != nil {
		return nil, fmt.Errorf("%w: config: %s", ErrOverride, strings.ReplaceAll(err.Error(), "\u00a0", " "))
	}
	if c.GetName() != "" && c.GetName() != model {
		return nil, fmt.Errorf("%w: config is of model %q", ErrOverride, c.GetName())
	}
	text, err := prototext.MarshalOptions{Multiline: true}.Marshal(c)
	if err == nil {
		text, err = parser.Format(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: config: %w", ErrOverride, err)
	}
	return text, nil
}

// lay writes the files of an order.
func lay(dir string, files map[string][]byte) error {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		local := filepath.FromSlash(path)
		if !filepath.IsLocal(local) {
			return fmt.Errorf("%w: file %q lies outside the model's directory", ErrOverride, path)
		}
		to := filepath.Join(dir, local)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return fmt.Errorf("%w: file %q: %w", ErrOverride, path, err)
		}
		if err := os.WriteFile(to, files[path], 0o600); err != nil {
			return fmt.Errorf("%w: file %q: %w", ErrOverride, path, err)
		}
	}
	return nil
}

// configured is a repository in which one model has the configuration of another tree.
type configured struct {
	fs.FS
	config fs.FS
	model  string
}

// of is the tree that has the file with that name.
func (c configured) of(name string) fs.FS {
	if name == path.Join(c.model, ConfigFile) {
		return c.config
	}
	return c.FS
}

// Open opens a file of either tree.
func (c configured) Open(name string) (fs.File, error) { return c.of(name).Open(name) }

// Stat says what is there.
func (c configured) Stat(name string) (fs.FileInfo, error) { return fs.Stat(c.of(name), name) }

// ReadDir lists a directory; the model's with the other configuration.
func (c configured) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(c.FS, name)
	if err != nil || name != c.model {
		return entries, err
	}
	configs, err := fs.ReadDir(c.config, name)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ConfigFile })
	return append(entries, configs...), err
}

// isModelName reports that a name can be one of a directory in the repository.
func isModelName(name string) bool {
	return filepath.IsLocal(name) && filepath.Base(name) == name && !strings.HasPrefix(name, ".")
}

// base identifies the operator's files of a model, as Override.Base does.
func base(m *Model) string { return m.Digest + "@" + m.Times }

// replace is the models with one of them replaced, or added in its place.
func replace(models []*Model, m *Model) []*Model {
	i, found := slices.BinarySearchFunc(models, m.Name, func(listed *Model, name string) int { return strings.Compare(listed.Name, name) })
	after := slices.Clone(models)
	if found {
		after[i] = m
		return after
	}
	return slices.Insert(after, i, m)
}

// keepOrders carries what clients ordered over to models that were read again.
func keepOrders(before, read []*Model) []*Model {
	after := read
	for _, was := range before {
		i := slices.IndexFunc(read, func(m *Model) bool { return m.Name == was.Name })
		if i < 0 {
			if was.Derived != nil || was.Override != nil && was.Override.Directory && !was.Unloaded {
				after = replace(after, was)
			}
			continue
		}
		m := read[i]
		m.Generation, m.Unloaded, m.Dependent = was.Generation, was.Unloaded, was.Dependent
		if was.Override != nil && !was.Unloaded && was.Override.Base == base(m) {
			after = replace(after, was)
		}
	}
	return after
}
