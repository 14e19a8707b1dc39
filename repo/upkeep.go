// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/store"
)

// Retention says what Collect keeps.
type Retention struct {
	// Newest revisions are kept, at least one.
	Newest int
	// InUse are revisions that are in use, and for what. All files of such a revision
	// are kept, those of derived models too.
	InUse map[string]string
	// DryRun removes nothing.
	DryRun bool
}

// Collected is what Collect removed, or would.
type Collected struct {
	// Revisions are those that are forgotten, newest first.
	Revisions []string
	// Kept are the other revisions, newest first, and what each is kept for.
	Kept []Kept
	// Models are the names of those that the kept revisions have, sorted.
	Models []string
	// Files and Bytes of content that no kept revision has.
	Files int
	Bytes int64
}

// Kept is a revision and what it is kept for.
type Kept struct{ Revision, For string }

// Collect forgets the revisions that r does not keep, and removes the content that
// no remaining revision names. Directories that were staged have their own copies.
func (s *Store) Collect(ctx context.Context, r Retention) (Collected, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	var done Collected
	all, err := s.records()
	if err != nil {
		return done, fmt.Errorf("collect: %w", err)
	}
	var forget []store.Change
	referenced := map[string]bool{}
	for i, revision := range all {
		why := r.InUse[revision.ID]
		if why == "" && i < max(r.Newest, 1) {
			why = fmt.Sprintf("one of the newest %d", max(r.Newest, 1))
		}
		if why == "" {
			n, err := revisionNumber(revision.ID)
			if err != nil {
				return done, fmt.Errorf("collect: %w", err)
			}
			forget = append(forget, store.Change{Bucket: revisionsBucket, Key: revisionKey(n)})
			done.Revisions = append(done.Revisions, revision.ID)
			continue
		}
		done.Kept = append(done.Kept, Kept{revision.ID, why})
		for _, m := range revision.Models {
			done.Models = append(done.Models, m.Name)
			for _, f := range contents(m) {
				referenced[s.files.path(f)] = true
			}
		}
	}
	slices.Sort(done.Models)
	done.Models = slices.Compact(done.Models)
	if !r.DryRun {
		// Revisions go first: a crash in between leaves files too many, not too few. Something is written in each case: where the revisions are another conch's by
		// now, which has the same files, that fails, and nothing is removed of what it has imported. Where they become another's after that, the fence says so.
		last, err := s.last()
		if err == nil {
			err = s.forget(append(forget, store.Change{Bucket: lastBucket, Key: lastKey, Value: strconv.AppendUint(nil, last, 10)}))
		}
		if err != nil {
			return done, fmt.Errorf("collect: %w", err)
		}
	}
	done.Files, done.Bytes, err = s.files.removeOthers(ctx, referenced, r.DryRun, s.fence)
	if err != nil {
		return done, fmt.Errorf("collect: %w", err)
	}
	return done, nil
}

func (s *Store) forget(revisions []store.Change) error {
	if err := s.revisions.Write(revisions...); err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		// What was seen of the operator's files is found out again when needed.
		if err := tx.DeleteBucket(seenBucket); err != nil {
			return err
		}
		_, err := tx.CreateBucket(seenBucket)
		return err
	})
}

// records are the revisions as they were written down, newest first, whatever has
// become of their content.
func (s *Store) records() ([]*Revision, error) {
	texts, err := s.texts(0)
	if err != nil {
		return nil, err
	}
	all := make([]*Revision, len(texts))
	for i, text := range texts {
		all[i] = &Revision{}
		if err := json.Unmarshal(text, all[i]); err != nil {
			return nil, fmt.Errorf("read revision: %w", err)
		}
	}
	return all, nil
}

// contents are all the files that a revision holds of a model.
func contents(m *Model) []File {
	files := slices.Clone(m.Files)
	if m.Managed.Digest != "" {
		managed := m.Managed
		managed.Path = ConfigFile
		files = append(files, managed)
	}
	return files
}

func revisionNumber(id string) (uint64, error) {
	digits, ok := strings.CutPrefix(id, "r")
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%w: %q; ids are r1, r2 and so on", ErrNoRevision, id)
	}
	return n, nil
}

// Verification is what Verify found.
type Verification struct {
	// Files and Bytes that were read.
	Files int
	Bytes int64
	// Damaged is sorted by revision, newest first, then by model and file.
	Damaged []Damage
}

// Damage is a file of a revision whose content is not what was imported.
type Damage struct {
	Revision, Model, File string
	// Text says what is wrong with it.
	Text string
	// Taken: the damaged content was taken out of the store.
	Taken bool
}

// Verify reads all content that revisions name and compares it with its digests.
// With mend, damaged content is taken out of the store, so that the next import
// writes it anew where the operator's directory has it. Others go on meanwhile: they
// wait only while what seems damaged is read again, since what is written, or
// collected, while it is read is not damaged.
func (s *Store) Verify(ctx context.Context, mend bool) (Verification, error) {
	var v Verification
	seen, err := s.records()
	if err != nil {
		return v, fmt.Errorf("verify: %w", err)
	}
	verdicts := map[string]string{}
	suspects := false
	for f := range filesOf(seen) {
		path := s.files.path(f)
		if _, known := verdicts[path]; known {
			continue
		}
		if verdicts[path], err = s.files.check(ctx, f); err != nil {
			return v, fmt.Errorf("verify: %w", err)
		}
		suspects = suspects || verdicts[path] != ""
		v.Files, v.Bytes = v.Files+1, v.Bytes+f.Size
	}
	if !suspects {
		return v, nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	v.Damaged, err = s.damaged(ctx, verdicts, mend)
	if err != nil {
		return v, fmt.Errorf("verify: %w", err)
	}
	return v, nil
}

// filesOf are the files that revisions hold.
func filesOf(all []*Revision) iter.Seq[File] {
	return func(yield func(File) bool) {
		for _, r := range all {
			for _, m := range r.Models {
				for _, f := range contents(m) {
					if !yield(f) {
						return
					}
				}
			}
		}
	}
}

// damaged reads again what is suspected by its verdict, and with mend takes out what is
// damaged indeed. The store's writing lock is held.
func (s *Store) damaged(ctx context.Context, suspected map[string]string, mend bool) (found []Damage, err error) {
	all, err := s.records()
	if err != nil {
		return nil, err
	}
	verdicts, taken := map[string]string{}, map[string]bool{}
	defer func() {
		if len(taken) > 0 {
			err = errors.Join(err, s.forget(nil))
		}
	}()
	for _, r := range all {
		for _, m := range r.Models {
			for _, f := range contents(m) {
				path := s.files.path(f)
				if suspected[path] == "" {
					continue
				}
				text, known := verdicts[path]
				if !known {
					if text, err = s.files.check(ctx, f); err != nil {
						return nil, err
					}
					verdicts[path] = text
				}
				if text == "" {
					continue
				}
				if _, err := os.Lstat(path); mend && err == nil {
					if err := os.Remove(path); err != nil {
						return nil, err
					}
					taken[path] = true
				}
				found = append(found, Damage{Revision: r.ID, Model: m.Name, File: f.Path, Text: text, Taken: taken[path]})
			}
		}
	}
	return slices.CompactFunc(found, func(a, b Damage) bool {
		return a.Revision == b.Revision && a.Model == b.Model && a.File == b.File
	}), nil
}
