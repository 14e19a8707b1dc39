// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/repo"
)

// Content is lost and changed behind the store's back, found, and mended by the next import as far as the operator's directory has it.
func TestVerifyFindsDamagedContentAndImportMendsIt(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	tree{"m/config.pbtxt": config, "m/1/model.py": "first", "n/config.pbtxt": config, "n/1/model.py": "other"}.write(t, dir)
	_, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	tree{"m/1/model.py": "second"}.write(t, dir)
	second, err := s.Import(t.Context(), dir, by("second"))
	require.NoError(t, err)
	v, err := s.Verify(t.Context(), false)
	require.NoError(t, err)
	require.Empty(t, v.Damaged)
	require.Equal(t, 5, v.Files, "three model.py, the config and that which Conch manages")

	content := func(text string) string {
		found := ""
		for path, have := range read(t, filepath.Join(state, "files")) {
			if have == text {
				found = filepath.Join(state, "files", path)
			}
		}
		require.NotEmpty(t, found, text)
		return found
	}
	change := func(path, text string) {
		require.NoError(t, os.Chmod(path, 0o600))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	require.NoError(t, os.Remove(content("first")))
	change(content("second"), "Second")
	change(content("other"), "othe")
	damaged := []repo.Damage{
		{Revision: "r2", Model: "m", File: "1/model.py", Text: "has other content than was imported"},
		{Revision: "r2", Model: "n", File: "1/model.py", Text: "has 4 bytes and had 5"},
		{Revision: "r1", Model: "m", File: "1/model.py", Text: "is missing"},
		{Revision: "r1", Model: "n", File: "1/model.py", Text: "has 4 bytes and had 5"},
	}
	v, err = s.Verify(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, damaged, v.Damaged)

	v, err = s.Verify(t.Context(), true)
	require.NoError(t, err)
	for i := range damaged {
		damaged[i].Taken = damaged[i].Text != "is missing"
	}
	require.Equal(t, damaged, v.Damaged)
	again, err := s.Import(t.Context(), dir, by("mend"))
	require.NoError(t, err)
	require.Equal(t, second.ID, again.ID, "the same content is the same revision")
	v, err = s.Verify(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, []repo.Damage{{Revision: "r1", Model: "m", File: "1/model.py", Text: "is missing"}}, v.Damaged, "the directory has it no more")
}

// A configuration that is damaged in the store costs its model, and not the revision.
func TestADamagedConfigurationCostsItsModel(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	tree{"m/config.pbtxt": config, "m/1/model.py": "one", "n/config.pbtxt": config + "name: \"n\"\n", "n/1/model.py": "one"}.write(t, dir)
	r, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	digest := r.Model("n").Managed.Digest
	require.NoError(t, os.Remove(filepath.Join(state, "files", digest[:2], digest)))
	r, err = s.Current()
	require.NoError(t, err)
	require.NoError(t, r.Model("m").Err())
	require.ErrorContains(t, r.Model("n").Err(), "tritonctl repo verify")
}

// That content is damaged is a thing of the store: what is written down meanwhile does not say so for ever.
func TestDamageEndsWithItsMending(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	tree{"m/config.pbtxt": config, "m/1/model.py": "one", "n/config.pbtxt": config + "name: \"n\"\n", "n/1/model.py": "one"}.write(t, dir)
	first, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	digest := first.Model("n").Managed.Digest
	path := filepath.Join(state, "files", digest[:2], digest)
	require.NoError(t, os.Rename(path, path+".away"))
	r, err := s.Unload(t.Context(), "", []string{"m"}, by("unload"))
	require.NoError(t, err)
	require.Error(t, r.Model("n").Err())
	require.NoError(t, os.Rename(path+".away", path))
	r, err = s.Get(r.ID)
	require.NoError(t, err)
	require.NoError(t, r.Model("n").Err())
}

// observed is a context that is asked whether it ended whenever a block is read.
type observed struct {
	context.Context
	asked func()
}

func (o observed) Err() error {
	o.asked()
	return o.Context.Err()
}

// Reading hundreds of gigabytes takes an hour, in which others import and load.
func TestAVerificationHoldsUpNobodyWhileItReads(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	tree{"m/config.pbtxt": config, "m/1/model.py": "one"}.write(t, dir)
	first, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	tree{"m/1/model.py": "two"}.write(t, dir)
	var once sync.Once
	ctx := observed{t.Context(), func() {
		once.Do(func() {
			done := make(chan error, 1)
			go func() {
				second, err := s.Import(t.Context(), dir, by("second"))
				if err == nil {
					// A revision that is not kept is removed while it is verified.
					_, err = s.Collect(t.Context(), repo.Retention{Newest: 1})
				}
				if err == nil && second.ID == first.ID {
					err = errors.New("nothing was imported")
				}
				done <- err
			}()
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(20 * time.Second):
				t.Error("an import waits for the verification")
			}
		})
	}}
	v, err := s.Verify(ctx, true)
	require.NoError(t, err)
	require.Empty(t, v.Damaged, "what was collected meanwhile is not damaged")
}

// taken are revisions that another conch has taken over since they were read.
type taken struct{ store.Store }

var errTaken = errors.New("another conch has taken it over")

// Write implements store.Store.
func (taken) Write(changes ...store.Change) error {
	if len(changes) > 0 {
		return errTaken
	}
	return nil
}

// A store whose revisions are another conch's by now removes nothing of what that one has imported.
func TestCollectBesideTheNextConch(t *testing.T) {
	dir, content := t.TempDir(), filepath.Join(t.TempDir(), "content")
	next, err := repo.Open(t.TempDir(), repo.Options{Files: content})
	require.NoError(t, err)
	defer next.Close() //nolint:errcheck // a test
	tree{"m/config.pbtxt": config, "m/1/model.py": "one"}.write(t, dir)
	_, err = next.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)

	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, nil)
	require.NoError(t, err)
	defer db.Close() //nolint:errcheck // a test
	before, err := repo.Open(t.TempDir(), repo.Options{Revisions: taken{store.NewBolt(db)}, Files: content})
	require.NoError(t, err)
	defer before.Close() //nolint:errcheck // a test
	_, err = before.Collect(t.Context(), repo.Retention{Newest: 1})
	require.ErrorIs(t, err, errTaken)
	v, err := next.Verify(t.Context(), false)
	require.NoError(t, err)
	require.Empty(t, v.Damaged)
}

// A store whose files become another conch's while it removes some removes no more of them.
func TestCollectEndsWithTheLease(t *testing.T) {
	dir, content := t.TempDir(), filepath.Join(t.TempDir(), "content")
	files := func() (n int) {
		require.NoError(t, filepath.WalkDir(content, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			return err
		}))
		return n
	}
	lost, removals := errors.New("another conch may lead"), 0
	s, err := repo.Open(t.TempDir(), repo.Options{Files: content, Fence: func() error {
		if removals++; removals > 1 {
			return lost
		}
		return nil
	}})
	require.NoError(t, err)
	defer s.Close() //nolint:errcheck // a test
	for _, text := range []string{"one", "two", "three", "four"} {
		tree{"m/config.pbtxt": config, "m/1/model.py": text}.write(t, dir)
		_, err = s.Import(t.Context(), dir, by(text))
		require.NoError(t, err)
	}
	before := files()
	_, err = s.Collect(t.Context(), repo.Retention{Newest: 1, DryRun: true})
	require.NoError(t, err)
	require.Zero(t, removals, "nothing would be removed")
	_, err = s.Collect(t.Context(), repo.Retention{Newest: 1})
	require.ErrorIs(t, err, lost)
	require.Equal(t, before-1, files())
	removals = -100
	_, err = s.Collect(t.Context(), repo.Retention{Newest: 1})
	require.NoError(t, err, "what is left goes with the next one")
	require.Equal(t, before-3, files())
}
