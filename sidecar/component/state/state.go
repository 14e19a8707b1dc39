// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/repo"
)

const (
	// databaseFile is what a state directory of conch has in it.
	databaseFile = "conch.db"
	// lockWait is how long an earlier conch may take to unlock the database.
	lockWait = time.Second
)

// Options of Open.
type Options struct {
	// Emulated says that models need no files of their backend.
	Emulated bool
	// Store keeps plans, events, revisions and what was learnt; nil: the database of the directory does.
	Store store.Store
	// Files is the directory of the content of models; empty: it is in the state directory. Who has the same Store has to have the same Files.
	Files string
	// Fence returns an error while Files may be another conch's to change; nil: they never are.
	Fence func() error
	Log   *slog.Logger
}

// State is an open state directory.
type State struct {
	// Store keeps plans, events and what was learnt.
	Store store.Store
	// db also keeps a second conch out of the directory.
	db *bbolt.DB
	// Repository keeps the revisions of models.
	Repository *repo.Store

	remove func() error // the name of the process
}

// Open opens a state directory, which it makes if there is none.
func Open(dir string, o Options) (s *State, err error) {
	if err := closeToOthers(dir, o.Log); err != nil {
		return nil, err
	}
	s = &State{Store: o.Store}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
			s = nil
		}
	}()
	if s.db, err = open(filepath.Join(dir, databaseFile)); err != nil {
		return s, err
	}
	if s.Store == nil {
		s.Store = store.NewBolt(s.db)
	}
	if s.remove, err = writeRunning(dir); err != nil {
		return s, err
	}
	s.Repository, err = repo.Open(filepath.Join(dir, "repository"), repo.Options{Emulated: o.Emulated, Revisions: o.Store, Files: o.Files, Fence: o.Fence})
	return s, err
}

// Run implements component.Component.
func (s *State) Run(ctx context.Context) error {
	<-ctx.Done()
	return s.close()
}

// close closes what is open, the last first.
func (s *State) close() error {
	var errs []error
	if s.Repository != nil {
		errs = append(errs, s.Repository.Close())
	}
	if s.remove != nil {
		errs = append(errs, s.remove())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	return errors.Join(errs...)
}

// open opens the database, which only one conch may have.
func open(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("directory %s is in use by another conch; stop that, or name another directory with --state", filepath.Dir(path))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return db, nil
}

// closeToOthers makes the state directory, mode 0700: a user that may write into it
// decides what conch starts, and its sockets lie there. A directory that other users
// may enter is closed to them if it is conch's own, and refused if it is not.
func closeToOthers(dir string, log *slog.Logger) error {
	const help = "name another with state in conch.yaml or --state"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory: %w; %s", err, help)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("directory: %w; %s", err, help)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("directory: %w; %s", err, help)
	}
	if _, absent := os.Stat(filepath.Join(dir, databaseFile)); len(entries) > 0 && errors.Is(absent, fs.ErrNotExist) {
		return fmt.Errorf("directory %s has other things in it and others may enter it (mode %04o); chmod 700 it, or %s", dir, info.Mode().Perm(), help)
	}
	err = os.Chmod(dir, 0o700)
	if errors.Is(err, fs.ErrPermission) {
		// A volume of another user; the files that conch puts into it are closed to others.
		log.Warn("others may enter the state directory, and conch may not close it", "directory", dir, "mode", info.Mode().Perm().String(), "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("directory: %w; %s", err, help)
	}
	log.Info("the state directory was closed to others", "directory", dir, "mode", info.Mode().Perm().String())
	return nil
}
