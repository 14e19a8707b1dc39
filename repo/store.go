// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/store"
)

// Options of Open.
type Options struct {
	// Emulated accepts models without the files of a real backend if minitriton
	// serves them by their parameters alone.
	Emulated bool
	// Revisions keeps the revisions; nil: the directory of Open does.
	Revisions store.Store
	// Files is the directory of the models' content; empty: it is in the directory of Open. Who has the same Revisions has to have the same Files. Others may be
	// writing there: whoever is the only one to write from now on calls Sweep.
	Files string
	// Fence returns an error while Files may be another's: then no content is removed. It is asked before each file. Nil: they never are.
	Fence func() error
}

// Store holds the revisions of a model repository. Its methods may be called
// from any goroutine.
type Store struct {
	files     files
	db        *bbolt.DB
	revisions store.Store
	emulated  bool
	// writing serialises whatever changes files or revisions. Reads go past it:
	// files and revisions never change once they can be found.
	writing sync.Mutex
	staging locks
	fence   func() error
}

const (
	revisionsBucket = "revisions"
	// lastBucket has under lastKey the number of the last revision that was made, which may have been withdrawn.
	lastBucket, lastKey = "revisions.last", "last"
)

var (
	// seenBucket remembers the digests of the operator's files by what stat says
	// of them, so that an unchanged file is not read again.
	seenBucket = []byte("seen")
)

// Open opens the store in directory dir, or makes it. One process at a time can
// hold a store; the second gets an error after a second.
func Open(dir string, o Options) (*Store, error) {
	s := &Store{files: files{root: cmp.Or(o.Files, filepath.Join(dir, "files"))}, revisions: o.Revisions, emulated: o.Emulated, fence: o.Fence}
	if s.fence == nil {
		s.fence = func() error { return nil }
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(s.files.root, 0o755)); err != nil {
		return nil, fmt.Errorf("repository store: %w", err)
	}
	db, err := bbolt.Open(filepath.Join(dir, "revisions.db"), 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("repository store %s: %w; is another conch running on it?", dir, err)
	}
	s.db = db
	if s.revisions == nil {
		s.revisions = store.NewBolt(db)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(seenBucket)
		return err
	})
	if err == nil && o.Files == "" {
		err = s.Sweep()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("repository store %s: %w", dir, err), db.Close())
	}
	return s, nil
}

// Sweep removes content that a crash has left half written, of which nobody but this Store may be writing any.
func (s *Store) Sweep() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.files.sweep()
}

// Close closes the store.
func (s *Store) Close() error { return s.db.Close() }

// Import is ImportReporting for nobody who waits.
func (s *Store) Import(ctx context.Context, dir string, by Origin) (*Revision, error) {
	return s.ImportReporting(ctx, dir, by, nil)
}

// Progress is how far an import is: Done of All bytes of the files that are there, and the model that is read. Bytes of files that the store
// has already count when they are looked at.
type Progress struct {
	Done, All int64
	Model     string
}

// ImportReporting reads the model repository dir into a new revision, which becomes the
// current one. Where nothing has changed, the current revision is returned and
// none is made. What clients ordered stays: a model that was unloaded is
// unloaded, and an override holds while the files that it stands for are the
// same. A model with problems is part of the revision, and they of it: one broken
// model does not hold up the others, nor does one of which a file cannot be read.
// The latter keeps what was imported of it before. A rollback holds no longer.
// Progress is called now and then; it may be nil.
func (s *Store) ImportReporting(ctx context.Context, dir string, by Origin, progress func(Progress)) (*Revision, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	before, err := s.Current()
	switch {
	case errors.Is(err, ErrNoRevision):
		before = &Revision{}
	case err != nil:
		return nil, fmt.Errorf("import %s: %w", dir, err)
	}
	models, err := s.read(ctx, dir, before.Models, by.Time, progress)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", dir, err)
	}
	models = keepOrders(before.Models, models)
	return s.commit(&Revision{Origin: by, Directory: dir, Models: models}, true)
}

// Rollback makes a new revision with the models of an earlier one. It holds until
// the next import: see Revision.Held.
func (s *Store) Rollback(_ context.Context, id string, by Origin) (*Revision, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	to, err := s.Get(id)
	if err != nil {
		return nil, fmt.Errorf("roll back: %w", err)
	}
	return s.commit(&Revision{Origin: by, Directory: to.Directory, RollbackTo: to.ID, Held: true, Models: to.Models}, false)
}

// Withdraw forgets the newest revision, which must not be served, so that the one
// before it is current again. It fails with ErrNoRevision where id is not the newest.
func (s *Store) Withdraw(_ context.Context, id string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	newest, err := s.Current()
	if err != nil {
		return fmt.Errorf("withdraw %s: %w", id, err)
	}
	n, err := revisionNumber(id)
	if err != nil || newest.ID != id {
		return fmt.Errorf("withdraw %s: %w; the newest is %s", id, ErrNoRevision, newest.ID)
	}
	if err := s.revisions.Write(store.Change{Bucket: revisionsBucket, Key: revisionKey(n)}); err != nil {
		return fmt.Errorf("withdraw %s: %w", id, err)
	}
	return nil
}

// commit numbers the revision and writes it down. With unlessSame, a revision
// with the models of the current one is not made.
func (s *Store) commit(r *Revision, unlessSame bool) (*Revision, error) {
	r.Models, r.Stale = settle(r.Models)
	parent, err := s.Current()
	switch {
	case errors.Is(err, ErrNoRevision):
		r.Diff = compare(nil, r.Models)
	case err != nil:
		return nil, err
	default:
		r.Parent = parent.ID
		r.Diff = compare(parent.Models, r.Models)
		if unlessSame && r.Diff.Empty() && parent.Directory == r.Directory && parent.Held == r.Held && sameRemarks(parent.Models, r.Models) {
			return parent, nil
		}
	}
	last, err := s.last()
	if err == nil {
		err = s.write(r, last+1)
	}
	if err != nil {
		return nil, fmt.Errorf("write revision: %w", err)
	}
	return r, nil
}

// last is the number of the last revision that was made.
func (s *Store) last() (uint64, error) {
	text, err := s.revisions.Get(lastBucket, lastKey)
	if err != nil {
		return 0, err
	}
	if text != nil {
		return strconv.ParseUint(string(text), 10, 64)
	}
	// The conch that made it did not write its number down.
	keys, err := s.revisions.Keys(revisionsBucket)
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	return binary.BigEndian.Uint64([]byte(keys[len(keys)-1])), nil
}

// write numbers a revision and writes it down.
func (s *Store) write(r *Revision, number uint64) error {
	r.ID = "r" + strconv.FormatUint(number, 10)
	text, err := json.Marshal(r.imported())
	if err != nil {
		return err
	}
	return s.revisions.Write(
		store.Change{Bucket: revisionsBucket, Key: revisionKey(number), Value: text},
		store.Change{Bucket: lastBucket, Key: lastKey, Value: strconv.AppendUint(nil, number, 10)},
	)
}

// imported is the revision without the problems of the store.
func (r *Revision) imported() *Revision {
	out := *r
	out.Models = slices.Clone(r.Models)
	for i, m := range r.Models {
		if slices.ContainsFunc(m.Problems, ofStore) {
			clean := *m
			clean.Problems = slices.DeleteFunc(slices.Clone(m.Problems), ofStore)
			out.Models[i] = &clean
		}
	}
	return &out
}

func ofStore(p Problem) bool { return p.ofStore }

// Current is the newest revision; ErrNoRevision before the first import.
func (s *Store) Current() (*Revision, error) {
	newest, err := s.Log(1)
	if err != nil {
		return nil, err
	}
	if len(newest) == 0 {
		return nil, fmt.Errorf("%w: nothing was imported yet", ErrNoRevision)
	}
	return newest[0], nil
}

// Get finds a revision by its id, such as "r3". It fails with [ErrNoRevision] if there is none.
func (s *Store) Get(id string) (*Revision, error) {
	n, err := revisionNumber(id)
	if err != nil {
		return nil, err
	}
	text, err := s.revisions.Get(revisionsBucket, revisionKey(n))
	if err != nil {
		return nil, fmt.Errorf("read revision %s: %w", id, err)
	}
	if text == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoRevision, id)
	}
	return s.decode(text)
}

// Log lists up to limit revisions (all for 0), newest first.
func (s *Store) Log(limit int) ([]*Revision, error) {
	texts, err := s.texts(limit)
	if err != nil {
		return nil, err
	}
	revisions := make([]*Revision, len(texts))
	for i, text := range texts {
		if revisions[i], err = s.decode(text); err != nil {
			return nil, err
		}
	}
	return revisions, nil
}

// Count is how many revisions there are.
func (s *Store) Count() (int, error) {
	keys, err := s.revisions.Keys(revisionsBucket)
	if err != nil {
		return 0, fmt.Errorf("read revisions: %w", err)
	}
	return len(keys), nil
}

// texts are the newest revisions as they were written down, newest first; all for a limit of 0.
func (s *Store) texts(limit int) (texts [][]byte, err error) {
	keys, err := s.revisions.Keys(revisionsBucket)
	if err != nil {
		return nil, fmt.Errorf("read revisions: %w", err)
	}
	for _, key := range slices.Backward(keys) {
		if limit > 0 && len(texts) == limit {
			break
		}
		text, err := s.revisions.Get(revisionsBucket, key)
		if err != nil {
			return nil, fmt.Errorf("read revisions: %w", err)
		}
		if text != nil { // else it was withdrawn since
			texts = append(texts, text)
		}
	}
	return texts, nil
}

// List lists the models of a revision, sorted by name; those of the current
// revision for an empty id.
func (s *Store) List(id string) ([]*Model, error) {
	r, err := s.revision(id)
	if err != nil {
		return nil, err
	}
	return r.Models, nil
}

func (s *Store) revision(id string) (*Revision, error) {
	if id == "" {
		return s.Current()
	}
	return s.Get(id)
}

func (s *Store) decode(text []byte) (*Revision, error) {
	r := &Revision{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read revision: %w", err)
	}
	for _, m := range r.Models {
		if m.Managed.Digest == "" {
			continue
		}
		if err := s.configure(m); err != nil {
			// It costs the model, not the revision, and not conch's start.
			m.Config, m.Written = nil, nil
			m.found([]Problem{{Severity: SeverityError, File: m.Name + "/" + ConfigFile, Text: "its content in conch's store is damaged (" + reason(err) + "); see tritonctl repo verify", ofStore: true}})
		}
	}
	return r, nil
}

// configure reads the configurations of a model out of the store.
func (s *Store) configure(m *Model) error {
	config, err := os.ReadFile(s.files.path(m.Managed))
	if err != nil {
		return err
	}
	if m.Config, err = servedConfig(config, m.Name); err != nil {
		return err
	}
	return s.written(m)
}

func revisionKey(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }
