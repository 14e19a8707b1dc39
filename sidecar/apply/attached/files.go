// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package attached

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// Store keeps revisions and stages them; a *repo.Store is one.
type Store interface {
	Get(id string) (*repo.Revision, error)
	Stage(ctx context.Context, revision string, models []string, dir string) error
	Unstage(ctx context.Context, dir string, models ...string) error
	Staged(dir string) ([]string, error)
	Original(revision, model string) ([]byte, error)
	Disown(dir string, models ...string) error
}

// Files stages into the repositories of attached servers without taking anything
// away: a model of the same name that is there already is put aside, in DIR.before
// beside the repository DIR, and back when conch's goes.
type Files struct {
	store  Store
	reload func(ctx context.Context, gpu, model string) error

	mu   sync.Mutex
	dirs map[string]map[string]string // revision staged, by repository and model
}

// NewFiles guards these repositories. Reload makes the server on a GPU load a
// model again.
func NewFiles(store Store, dirs []string, reload func(ctx context.Context, gpu, model string) error) *Files {
	f := &Files{store: store, reload: reload, dirs: map[string]map[string]string{}}
	for _, dir := range dirs {
		f.dirs[dir] = map[string]string{}
	}
	return f
}

// Get finds a revision of the store.
func (f *Files) Get(id string) (*repo.Revision, error) { return f.store.Get(id) }

// Stage puts models into dir.
func (f *Files) Stage(ctx context.Context, revision string, models []string, dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	notes, own := f.dirs[dir]
	if !own {
		return f.store.Stage(ctx, revision, models, dir)
	}
	staged, err := f.store.Staged(dir)
	if err != nil {
		return err
	}
	for _, name := range models {
		if slices.Contains(staged, name) {
			continue
		}
		if err := putAside(dir, name); err != nil {
			return fmt.Errorf("stage %q: its own files in %s could not be put aside: %w", name, dir, err)
		}
	}
	if err := f.store.Stage(ctx, revision, models, dir); err != nil {
		return err
	}
	for _, name := range models {
		notes[name] = revision
	}
	return nil
}

// Unstage removes models that Stage put into dir; all of them if none is named.
// What else is in a server's own repository stays.
func (f *Files) Unstage(ctx context.Context, dir string, models ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, own := f.dirs[dir]; !own {
		return f.store.Unstage(ctx, dir, models...)
	}
	return f.unstage(ctx, dir, models...)
}

// unstage is Unstage in a server's own repository. Guarded by mu.
func (f *Files) unstage(ctx context.Context, dir string, models ...string) error {
	staged, err := f.store.Staged(dir)
	if err != nil {
		return err
	}
	if len(models) > 0 {
		staged = slices.DeleteFunc(staged, func(name string) bool { return !slices.Contains(models, name) })
	}
	for _, name := range staged {
		if err := f.store.Unstage(ctx, dir, name); err != nil {
			return err
		}
		delete(f.dirs[dir], name)
		if err := putBack(dir, name); err != nil {
			return fmt.Errorf("unstage %q: its own files could not be put back into %s: %w", name, dir, err)
		}
	}
	return nil
}

// release gives a server's repository back: models that were there before get
// their own files, those that conch brought stay, with a configuration that
// serves well without conch.
func (f *Files) release(ctx context.Context, s driver.EndpointState, dry bool, delay func(model string) time.Duration) []driver.Handover {
	f.mu.Lock()
	defer f.mu.Unlock()
	notes, own := f.dirs[s.Repository]
	if !own {
		return nil
	}
	staged, err := f.store.Staged(s.Repository)
	if err != nil {
		return []driver.Handover{{GPU: s.GPU, Endpoint: s.GRPC, Err: err}}
	}
	var all []driver.Handover
	for _, name := range staged {
		h := driver.Handover{GPU: s.GPU, Endpoint: s.GRPC, Model: name}
		if !s.Up {
			h.Err = fmt.Errorf("%w: %s; order it again once the server is back", driver.ErrDown, s.Reason)
			all = append(all, h)
			continue
		}
		if isAside(s.Repository, name) {
			h.Change = "its own files put back"
			if !dry {
				h.Err = f.unstage(ctx, s.Repository, name)
			}
		} else {
			h.Change, h.Err = f.leave(s.Repository, name, notes[name], delay(name), dry)
		}
		if h.Err == nil && !dry {
			h.Err = f.reload(ctx, s.GPU, name)
		}
		all = append(all, h)
	}
	return all
}

// leave makes a model that conch brought the operator's.
func (f *Files) leave(dir, name, revision string, delay time.Duration, dry bool) (change string, err error) {
	text, err := f.store.Original(revision, name)
	if err != nil {
		return "", err
	}
	text, added, err := repo.Unmanage(text, max(0, delay.Microseconds()))
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", repo.ConfigFile, name, err)
	}
	change = "stays loaded, with the operator's configuration"
	if added {
		change = fmt.Sprintf("stays loaded, with dynamic_batching and a max_queue_delay of %s", delay)
	}
	if dry {
		return change, nil
	}
	// A new file: the one that is there may be linked to the store's.
	config := filepath.Join(dir, name, repo.ConfigFile)
	if err := os.WriteFile(config+".new", text, 0o644); err != nil {
		return "", err
	}
	if err := os.Rename(config+".new", config); err != nil {
		return "", err
	}
	return change, f.store.Disown(dir, name)
}

func aside(dir, name string) string { return filepath.Join(dir+".before", name) }

func isAside(dir, name string) bool {
	_, err := os.Stat(aside(dir, name))
	return err == nil
}

// putAside moves a model that is not conch's out of the way.
func putAside(dir, name string) error {
	if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if isAside(dir, name) {
		return fmt.Errorf("%s is there from an earlier time; put back or remove what is not needed", aside(dir, name))
	}
	if err := os.MkdirAll(dir+".before", 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, name), aside(dir, name))
}

func putBack(dir, name string) error {
	if !isAside(dir, name) {
		return nil
	}
	if err := os.Rename(aside(dir, name), filepath.Join(dir, name)); err != nil {
		return err
	}
	if err := os.Remove(dir + ".before"); err != nil && !isNotEmpty(dir+".before") {
		return err
	}
	return nil
}

// isNotEmpty reports whether a directory is still needed.
func isNotEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) > 0
}
