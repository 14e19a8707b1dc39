// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/modeldir"
)

// maxDepth bounds the directories of one model, so that a link to a parent
// directory ends somewhere.
const maxDepth = 16

// unreadable is a file or directory of the operator's that cannot be read, as
// opposed to a store that cannot be written.
type unreadable struct {
	path string // inside the model's directory, with slashes
	err  error
}

func (u *unreadable) Error() string { return u.path + ": " + u.err.Error() }
func (u *unreadable) Unwrap() error { return u.err }

// source marks the errors of reading one of the operator's files.
type source struct {
	io.Reader
	path string
}

func (s source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &unreadable{s.path, err}
	}
	return n, err
}

// left is a model of which a file cannot be read: what was imported of it before,
// or a model with a problem and nothing else.
func left(name string, why *unreadable, before []*Model) *Model {
	problem := Problem{Severity: SeverityError, File: path.Join(name, why.path), Text: reason(why.err)}
	for _, was := range before {
		if was.Name == name && was.Digest != "" && was.Derived == nil && was.Err() == nil {
			kept := *was
			problem.Severity = SeverityWarning
			problem.Text += "; what was imported of the model before stays"
			kept.Problems = slices.DeleteFunc(slices.Clone(was.Problems), func(p Problem) bool { return p == problem })
			kept.Problems = append(kept.Problems, problem)
			return &kept
		}
	}
	return &Model{Name: name, Problems: []Problem{problem}}
}

// read copies every model of the operator's directory into the store. The
// directory itself is only read. What cannot be read costs its model alone, which
// stays as it was before.
func (s *Store) read(ctx context.Context, dir string, before []*Model, now time.Time, progress func(Progress)) ([]*Model, error) {
	seen := seen{now: now, fresh: map[string]File{}}
	fsys := modeldir.FS(dir)
	names, err := modelNames(fsys)
	if err != nil {
		return nil, err
	}
	if progress != nil {
		seen.far = &far{report: progress}
		for _, name := range names {
			seen.far.All += size(fsys, name, 0)
		}
	}
	models := make([]*Model, 0, len(names))
	for _, name := range names {
		seen.far.at(name)
		m, err := s.readModel(ctx, fsys, dir, name, seen)
		var why *unreadable
		switch {
		case errors.As(err, &why):
			m = left(name, why, before)
		case err != nil:
			return nil, fmt.Errorf("model %q: %w", name, err)
		}
		models = append(models, m)
	}
	found, err := s.ensembles(models)
	if err != nil {
		return nil, err
	}
	for _, m := range models {
		m.found(found[m.Name])
	}
	if err := s.remember(seen.fresh); err != nil {
		return nil, err
	}
	return models, nil
}

// ensembles says what is wrong with how ensembles call other models, by their
// names.
func (s *Store) ensembles(models []*Model) (map[string][]Problem, error) {
	all := neighbours{}
	for _, m := range models {
		n := &neighbour{config: m.Config, versions: m.Versions, refused: m.Err() != nil}
		if i := slices.IndexFunc(m.Files, isConfig); i >= 0 && m.Config.GetEnsembleScheduling() != nil {
			var err error
			if n.text, err = os.ReadFile(s.files.path(m.Files[i])); err != nil {
				return nil, fmt.Errorf("model %q: %w", m.Name, err)
			}
		}
		all[m.Name] = n
	}
	return all.check(), nil
}

func isConfig(f File) bool { return f.Path == ConfigFile }

// found adds problems to those that a model has.
func (m *Model) found(problems []Problem) {
	m.Problems = append(m.Problems, problems...)
	sortProblems(m.Problems)
}

// written reads the configuration as its author wrote it.
func (s *Store) written(m *Model) error {
	i := slices.IndexFunc(m.Files, isConfig)
	if i < 0 || m.Files[i].Digest == m.Managed.Digest {
		m.Written = m.Config
		return nil
	}
	text, err := os.ReadFile(s.files.path(m.Files[i]))
	if err != nil {
		return err
	}
	m.Written, err = servedConfig(text, m.Name)
	return err
}

// seen is what one import learns about files whose content was read.
type seen struct {
	now   time.Time
	fresh map[string]File
	far   *far
}

// far counts what an import has read; nil counts nothing.
type far struct {
	Progress
	report func(Progress)
	shown  int64
}

// at begins a model.
func (f *far) at(model string) {
	if f != nil {
		f.Model = model
		f.report(f.Progress)
	}
}

// add counts bytes, and reports every few megabytes.
func (f *far) add(n int64) {
	if f == nil {
		return
	}
	if f.Done += n; f.Done-f.shown >= 16<<20 {
		f.shown = f.Done
		f.report(f.Progress)
	}
}

// size of the files below a directory, as far as they can be seen: what cannot be read is reported by the import itself.
func size(fsys fs.FS, dir string, depth int) (sum int64) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil || depth > maxDepth {
		return 0
	}
	for _, e := range entries {
		info, err := fs.Stat(fsys, path.Join(dir, e.Name()))
		switch {
		case err != nil || e.Name() == "__pycache__" || e.Name() == ".git":
		case info.IsDir():
			sum += size(fsys, path.Join(dir, e.Name()), depth+1)
		case info.Mode().IsRegular():
			sum += info.Size()
		}
	}
	return sum
}

// counting counts what is read.
type counting struct {
	io.Reader
	far *far
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.far.add(int64(n))
	return n, err
}

// readModel copies the model's directory of fsys into the store. dir is where fsys lies.
func (s *Store) readModel(ctx context.Context, fsys fs.FS, dir, name string, seen seen) (*Model, error) {
	m := &Model{Name: name}
	var versions []string
	times := sha256.New()
	w := walker{Store: s, fsys: fsys, model: name, dir: filepath.Join(dir, name), seen: seen}
	err := w.walk(ctx, "", 0, func(f File, changed time.Time) {
		m.Files = append(m.Files, f)
		fmt.Fprintf(times, "%q %d\n", f.Path, changed.UnixNano())
	}, func(sub string) { versions = append(versions, sub) })
	if err != nil {
		return nil, err
	}
	m.Times = hex.EncodeToString(times.Sum(nil)[:8])
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	m.Versions = versionNames(versions).numbers()
	m.Digest = digest(m.Files)
	m.Problems = Validate(fsys, name, Strictness{Newer: true, emulated: s.emulated})

	i := slices.IndexFunc(m.Files, isConfig)
	if i < 0 {
		return m, nil
	}
	text, err := os.ReadFile(s.files.path(m.Files[i]))
	if err != nil {
		return nil, err
	}
	managed, err := Manage(text)
	if err != nil {
		return m, nil //nolint:nilerr // a problem of the model, which validate has named
	}
	if m.Config, err = servedConfig(managed, name); err != nil {
		return nil, err
	}
	if m.Managed, err = s.files.add(ctx, bytes.NewReader(managed), false); err != nil {
		return nil, err
	}
	m.Managed.Path = ConfigFile
	return m, s.written(m)
}

// walker copies one model's directory into the store.
type walker struct {
	*Store
	fsys  fs.FS
	model string
	dir   string // of the model, outside of fsys
	seen  seen
}

// walk visits the files of a model directory, and its directories of the first level. Links are followed where they stay in the directory; one to
// nowhere is passed over, and so is what is neither a file nor a directory.
func (w walker) walk(ctx context.Context, under string, depth int, file func(File, time.Time), directory func(string)) error {
	if depth > maxDepth {
		return &unreadable{under, fmt.Errorf("more than %d directories deep; does a link point to a parent?", maxDepth)}
	}
	entries, err := fs.ReadDir(w.fsys, path.Join(w.model, under))
	if err != nil {
		return &unreadable{under, err}
	}
	for _, e := range entries {
		inside := path.Join(under, e.Name())
		info, err := fs.Stat(w.fsys, path.Join(w.model, inside))
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, modeldir.ErrOutside) && w.nowhere(inside):
			continue // a link to nowhere, or removed while we read
		case err != nil:
			return &unreadable{inside, err}
		case info.IsDir():
			// Python's cache and the operator's version control are not the model.
			if e.Name() == "__pycache__" || e.Name() == ".git" {
				continue
			}
			if under == "" {
				directory(e.Name())
			}
			if err := w.walk(ctx, inside, depth+1, file, directory); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			f, err := w.readFile(ctx, inside, info)
			if err != nil {
				return fmt.Errorf("%s: %w", inside, err)
			}
			f.Path = inside
			file(f, info.ModTime())
		}
	}
	return nil
}

// nowhere says of a link that leads out of the model's directory that nothing is there.
func (w walker) nowhere(inside string) bool {
	_, err := os.Stat(filepath.Join(w.dir, filepath.FromSlash(inside)))
	return errors.Is(err, fs.ErrNotExist)
}

// readFile copies one file into the store, unless it is known to be there.
func (w walker) readFile(ctx context.Context, inside string, info fs.FileInfo) (File, error) {
	full := filepath.Join(w.dir, filepath.FromSlash(inside))
	key, cacheable := identity(full, info)
	if cacheable {
		var known File
		err := w.db.View(func(tx *bbolt.Tx) error {
			if text := tx.Bucket(seenBucket).Get(key); text != nil {
				return json.Unmarshal(text, &known)
			}
			return nil
		})
		if err == nil && known.Digest != "" && w.files.has(known) {
			w.seen.far.add(info.Size())
			return known, nil
		}
	}
	content, err := w.fsys.Open(path.Join(w.model, inside))
	if err != nil {
		return File{}, &unreadable{inside, err}
	}
	defer content.Close() //nolint:errcheck // only read from
	f, err := w.files.add(ctx, counting{source{content, inside}, w.seen.far}, info.Mode()&0o111 != 0)
	if err != nil || !cacheable {
		return f, err
	}
	// A file that changed while it was read, or that may change again within the
	// resolution of its times, is not remembered.
	after, err := content.Stat()
	if err != nil {
		return File{}, &unreadable{inside, err}
	}
	if again, _ := identity(full, after); bytes.Equal(key, again) && w.seen.now.Sub(info.ModTime()) > 2*time.Second {
		w.seen.fresh[string(key)] = f
	}
	return f, nil
}

// remember writes down the digests of files that were read.
func (s *Store) remember(fresh map[string]File) error {
	if len(fresh) == 0 {
		return nil
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		for key, f := range fresh {
			text, err := json.Marshal(f)
			if err != nil {
				return err
			}
			if err := tx.Bucket(seenBucket).Put([]byte(key), text); err != nil {
				return err
			}
		}
		return nil
	})
}

// digest is one digest over a model's files.
func digest(list []File) string {
	sum := sha256.New()
	for _, f := range list {
		fmt.Fprintf(sum, "%q %s %t\n", f.Path, f.Digest, f.Executable)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// compare is what changed from the models before to those after; both are
// sorted by name.
func compare(before, after []*Model) Diff {
	old := map[string]*Model{}
	for _, m := range before {
		old[m.Name] = m
	}
	var d Diff
	for _, m := range after {
		was, ok := old[m.Name]
		delete(old, m.Name)
		switch {
		case !ok:
			d.Added = append(d.Added, m.Name)
		case was.Digest != m.Digest || was.Managed.Digest != m.Managed.Digest:
			d.Changed = append(d.Changed, compareFiles(was, m))
		}
		switch {
		case m.Unloaded && (!ok || !was.Unloaded):
			d.Unloaded = append(d.Unloaded, m.Name)
		case ok && !m.Unloaded && (was.Unloaded || was.Generation != m.Generation):
			d.Loaded = append(d.Loaded, m.Name)
		}
	}
	for _, m := range before {
		if _, gone := old[m.Name]; gone {
			d.Removed = append(d.Removed, m.Name)
		}
	}
	return d
}

func compareFiles(before, after *Model) ModelChange {
	change := ModelChange{Model: after.Name}
	old := map[string]File{}
	for _, f := range before.Files {
		old[f.Path] = f
	}
	for _, f := range after.Files {
		was, ok := old[f.Path]
		delete(old, f.Path)
		switch {
		case !ok:
			change.Added = append(change.Added, f.Path)
		case was != f:
			change.Changed = append(change.Changed, f.Path)
		}
	}
	for _, f := range before.Files {
		if _, gone := old[f.Path]; gone {
			change.Removed = append(change.Removed, f.Path)
		}
	}
	return change
}

// sameRemarks compares what a Diff does not show.
func sameRemarks(a, b []*Model) bool {
	return slices.EqualFunc(a, b, func(x, y *Model) bool {
		return x.Dependent == y.Dependent && slices.Equal(x.Problems, y.Problems) && (x.Override == y.Override || x.Override != nil && y.Override != nil && *x.Override == *y.Override)
	})
}
