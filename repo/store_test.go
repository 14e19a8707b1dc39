// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/repo"
)

const config = `backend: "python"
max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: 4 }
output { name: "B" data_type: TYPE_FP32 dims: 4 }
dynamic_batching { max_queue_delay_microseconds: 50 }
`

// tree is files by path.
type tree map[string]string

func (files tree) write(t require.TestingT, dir string) {
	for path, content := range files {
		full := filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, []byte(content), 0o644))
	}
}

func read(t require.TestingT, dir string) tree {
	files := tree{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		relative, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(relative)] = string(content)
		return err
	}))
	return files
}

func open(t *testing.T, dir string) *repo.Store {
	s, err := repo.Open(dir, repo.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func by(reason string) repo.Origin {
	return repo.Origin{Author: "tester", Reason: reason, Time: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func TestImportRecordsWhatChanged(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	_, err := s.Current()
	require.ErrorIs(t, err, repo.ErrNoRevision)

	tree{"m/config.pbtxt": config, "m/1/model.py": "one", "n/config.pbtxt": config, "n/1/model.py": "one", "n/labels.txt": "cat", ".hidden/x": "", "README": "not a model"}.write(t, dir)
	first, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	require.Equal(t, "r1", first.ID)
	require.Equal(t, []string{"m", "n"}, first.Diff.Added)
	require.Equal(t, []int64{1}, first.Model("m").Versions)
	require.NoError(t, first.Model("m").Err())
	require.Zero(t, first.Model("m").Config.GetDynamicBatching().GetMaxQueueDelayMicroseconds(), "the managed config counts")
	require.Equal(t, "m", first.Model("m").Config.GetName(), "Triton fills the name in")

	same, err := s.Import(t.Context(), dir, by("again"))
	require.NoError(t, err)
	require.Equal(t, "r1", same.ID, "nothing changed: no revision")

	tree{"m/2/model.py": "two", "o/config.pbtxt": config, "o/1/model.py": "one", "n/labels.txt": "dog"}.write(t, dir)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "m", "1")))
	second, err := s.Import(t.Context(), dir, by("second"))
	require.NoError(t, err)
	require.Equal(t, repo.Diff{Added: []string{"o"}, Changed: []repo.ModelChange{
		{Model: "m", Added: []string{"2/model.py"}, Removed: []string{"1/model.py"}}, {Model: "n", Changed: []string{"labels.txt"}},
	}}, second.Diff)
	require.Equal(t, "r1", second.Parent)
	require.Equal(t, []string{"m", "n"}, second.Diff.ChangedModels())

	back, err := s.Rollback(t.Context(), "r1", by("o was a mistake"))
	require.NoError(t, err)
	require.Equal(t, "r3", back.ID)
	require.Equal(t, "r1", back.RollbackTo)
	require.Equal(t, []string{"o"}, back.Diff.Removed)
	require.Equal(t, first.Model("m").Digest, back.Model("m").Digest)

	log, err := s.Log(2)
	require.NoError(t, err)
	require.Len(t, log, 2)
	require.Equal(t, "o was a mistake", log[0].Reason)
	require.Equal(t, by("x").Time, log[0].Time)
	models, err := s.List("")
	require.NoError(t, err)
	require.Len(t, models, 2)

	// All of it is there after a restart.
	require.NoError(t, s.Close())
	s2, err := repo.Open(state, repo.Options{})
	require.NoError(t, err)
	defer s2.Close() //nolint:errcheck // of a test
	current, err := s2.Current()
	require.NoError(t, err)
	require.Equal(t, back.Diff, current.Diff)
	require.Equal(t, int32(8), current.Model("n").Config.GetMaxBatchSize())
	_, err = s2.Get("r9")
	require.ErrorIs(t, err, repo.ErrNoRevision)
	_, err = s2.Get("latest")
	require.ErrorIs(t, err, repo.ErrNoRevision)
}

// TestSweep: what a crash left half written goes when a store of its own is opened. Where others may be writing to the same content, that is for whoever writes alone to say.
func TestSweep(t *testing.T) {
	dir, shared := t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(dir, "files", "incoming-1"), filepath.Join(shared, "incoming-1")} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte("half"), 0o600))
	}
	open(t, dir)
	require.NoFileExists(t, filepath.Join(dir, "files", "incoming-1"))
	s, err := repo.Open(t.TempDir(), repo.Options{Files: shared})
	require.NoError(t, err)
	defer s.Close() //nolint:errcheck // of a test
	require.FileExists(t, filepath.Join(shared, "incoming-1"))
	require.NoError(t, s.Sweep())
	require.NoFileExists(t, filepath.Join(shared, "incoming-1"))
}

func TestOneBrokenModelDoesNotHoldUpTheOthers(t *testing.T) {
	dir := t.TempDir()
	tree{"good/config.pbtxt": config, "good/1/model.py": "", "bad/config.pbtxt": "max_batch_size: lots", "bad/1/model.py": "", "bare/1/model.py": ""}.write(t, dir)
	s := open(t, t.TempDir())
	r, err := s.Import(t.Context(), dir, by("mixed"))
	require.NoError(t, err)
	require.NoError(t, r.Model("good").Err())
	require.ErrorIs(t, r.Model("bad").Err(), repo.ErrInvalidModel)
	require.ErrorContains(t, r.Model("bad").Err(), "bad/config.pbtxt:1:")
	require.ErrorContains(t, r.Model("bare").Err(), "no configuration")
	staged := filepath.Join(t.TempDir(), "repository")
	require.ErrorIs(t, s.Stage(t.Context(), r.ID, []string{"bad"}, staged), repo.ErrInvalidModel)
	require.ErrorIs(t, s.Stage(t.Context(), r.ID, []string{"gone"}, staged), repo.ErrNoModel)
	require.NoError(t, s.Stage(t.Context(), r.ID, []string{"good"}, staged))

	// Mending it is a change, although a broken config has no managed form.
	tree{"bad/config.pbtxt": config}.write(t, dir)
	r, err = s.Import(t.Context(), dir, by("mended"))
	require.NoError(t, err)
	require.NoError(t, r.Model("bad").Err())
}

func TestEmulatedModelsNeedNoFileOfABackend(t *testing.T) {
	dir := t.TempDir()
	tree{"m/config.pbtxt": config + `parameters { key: "conch_emulate_beta_us" value { string_value: "1000" } }`, "m/1/.keep": ""}.write(t, dir)
	s, err := repo.Open(t.TempDir(), repo.Options{Emulated: true})
	require.NoError(t, err)
	defer s.Close() //nolint:errcheck // of a test
	r, err := s.Import(t.Context(), dir, by("emulated"))
	require.NoError(t, err)
	require.NoError(t, r.Model("m").Err())
	require.NotEmpty(t, repo.Validate(os.DirFS(dir), "m", repo.Strictness{}), "a real server would hang")
}

func TestLinksAreFollowedAndCyclesEnd(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	tree{"config.pbtxt": config, "1/model.py": "one"}.write(t, elsewhere)
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, "m")))
	require.NoError(t, os.Symlink("/nowhere", filepath.Join(elsewhere, "dangling")))
	s := open(t, t.TempDir())
	r, err := s.Import(t.Context(), dir, by("links"))
	require.NoError(t, err)
	require.NoError(t, r.Model("m").Err())
	require.Len(t, r.Model("m").Files, 2)
	require.NoError(t, os.Symlink("..", filepath.Join(elsewhere, "1", "up")))
	r, err = s.Import(t.Context(), dir, by("cycle"))
	require.NoError(t, err)
	require.NoError(t, r.Model("m").Err(), "what was imported before stays")
	require.Contains(t, fmt.Sprint(r.Model("m").Problems), "does a link point to a parent?")
}

// What leads out of a model's directory, or is no file, is not read: neither by an import nor by a validation, which both end.
func TestOnlyFilesOfTheModelAreRead(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	dir := t.TempDir()
	for _, name := range []string{"version", "weights", "device", "config", "configpipe", "script", "pipe", "inside"} {
		tree{name + "/config.pbtxt": config, name + "/1/model.py": "one"}.write(t, dir)
	}
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	for _, name := range []string{"config/config.pbtxt", "configpipe/config.pbtxt", "script/1/model.py", "version/1/model.py", "version/1"} {
		require.NoError(t, os.Remove(at(name)))
	}
	for name, to := range map[string]string{
		"version/1": filepath.Dir(secret), "weights/1/weights": secret, "device/1/zero": "/dev/zero", "config/config.pbtxt": "/dev/zero", "inside/2": "1",
	} {
		require.NoError(t, os.Symlink(to, at(name)))
	}
	for _, name := range []string{"configpipe/config.pbtxt", "script/1/model.py", "pipe/1/pipe"} {
		require.NoError(t, syscall.Mkfifo(at(name), 0o600))
	}
	outside := modeldir.ErrOutside.Error()
	wrong := map[string]string{
		"version": "version/1: cannot be read: " + outside, "weights": "weights/1/weights: cannot be read: " + outside,
		"device": "device/1/zero: cannot be read: " + outside, "config": "config/config.pbtxt: cannot be read: " + outside,
		"configpipe": "configpipe/config.pbtxt: cannot be read: not a regular file", "script": "script/1/model.py: is neither a file nor a directory",
		"pipe": "", "inside": "",
	}
	s := open(t, t.TempDir())
	r, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	problems, err := repo.ValidateAll(modeldir.FS(dir), repo.Strictness{})
	require.NoError(t, err)
	for name, want := range wrong {
		if want == "" {
			require.NoError(t, r.Model(name).Err(), name)
			continue
		}
		require.ErrorContains(t, r.Model(name).Err(), want)
		if name != "weights" && name != "device" { // a validation looks at what a configuration names
			require.Contains(t, fmt.Sprint(problems), want)
		}
	}
	require.Len(t, r.Model("inside").Files, 3, "a link that stays inside is followed")
	require.Len(t, r.Model("pipe").Files, 2, "a pipe is no file of the model")
}

// A file that cannot be read: a link to itself, and one that leads out of the model.
func TestAnUnreadableFileCostsItsModelAlone(t *testing.T) {
	dir := t.TempDir()
	tree{"m/config.pbtxt": config, "m/1/model.py": "one", "n/config.pbtxt": config, "n/1/model.py": "one"}.write(t, dir)
	s := open(t, t.TempDir())
	first, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)

	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "m", "1", "loop")))
	tree{"n/1/model.py": "two", "o/config.pbtxt": config, "o/1/model.py": "one"}.write(t, dir)
	require.NoError(t, os.Symlink("/proc/self/mem", filepath.Join(dir, "o", "1", "weights")))
	second, err := s.Import(t.Context(), dir, by("second"))
	require.NoError(t, err)
	require.Equal(t, []string{"n"}, second.Diff.ChangedModels(), "the others are imported")
	require.Equal(t, []string{"o"}, second.Diff.Added)
	m := second.Model("m")
	require.NoError(t, m.Err())
	require.Equal(t, first.Model("m").Files, m.Files, "it is as it was imported before")
	require.Equal(t, []repo.Problem{{
		Severity: repo.SeverityWarning, File: "m/1/loop", Text: "cannot be read: too many levels of symbolic links; what was imported of the model before stays",
	}}, m.Problems)
	require.ErrorContains(t, second.Model("o").Err(), "o/1/weights: cannot be read: "+modeldir.ErrOutside.Error())
	again, err := s.Import(t.Context(), dir, by("again"))
	require.NoError(t, err)
	require.Equal(t, second.ID, again.ID, "nothing changed")

	require.NoError(t, os.Remove(filepath.Join(dir, "m", "1", "loop")))
	third, err := s.Import(t.Context(), dir, by("mended"))
	require.NoError(t, err)
	require.Empty(t, third.Model("m").Problems)
}

func TestARollbackHoldsUntilAnImport(t *testing.T) {
	dir := t.TempDir()
	tree{"m/config.pbtxt": config, "m/1/model.py": "one"}.write(t, dir)
	s := open(t, t.TempDir())
	r, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	require.False(t, r.Held)
	tree{"m/1/model.py": "two"}.write(t, dir)
	_, err = s.Import(t.Context(), dir, by("second"))
	require.NoError(t, err)
	r, err = s.Rollback(t.Context(), "r1", by("two is slow"))
	require.NoError(t, err)
	require.True(t, r.Held)
	r, err = s.Unload(t.Context(), "", []string{"m"}, by("a client's order"))
	require.NoError(t, err)
	require.True(t, r.Held, "orders go on from it")

	tree{"m/1/model.py": "three"}.write(t, dir)
	r, err = s.Import(t.Context(), dir, by("third"))
	require.NoError(t, err)
	require.False(t, r.Held)
	require.ErrorIs(t, s.Withdraw(t.Context(), "r1"), repo.ErrNoRevision, "only the newest can be withdrawn")
	require.NoError(t, s.Withdraw(t.Context(), r.ID))
	r, err = s.Current()
	require.NoError(t, err)
	require.True(t, r.Held, "the revision before is current again")
}

func TestCollectKeepsWhatIsReferenced(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	for _, content := range []string{"one", "two", "three"} {
		tree{"m/config.pbtxt": config, "m/1/model.py": content}.write(t, dir)
		_, err := s.Import(t.Context(), dir, by(content))
		require.NoError(t, err)
	}
	staged := filepath.Join(state, "p", "repository")
	require.NoError(t, s.Stage(t.Context(), "r2", []string{"m"}, staged))
	keep := repo.Retention{Newest: 1, InUse: map[string]string{"r1": "it serves"}, DryRun: true}
	want := repo.Collected{Revisions: []string{"r2"}, Kept: []repo.Kept{{"r3", "one of the newest 1"}, {"r1", "it serves"}}, Models: []string{"m"}, Files: 1, Bytes: 3}
	for range 2 { // a dry run changes nothing
		done, err := s.Collect(t.Context(), keep)
		require.NoError(t, err)
		require.Equal(t, want, done)
		_, err = s.Get("r2")
		require.NoError(t, err)
	}
	keep.DryRun = false
	done, err := s.Collect(t.Context(), keep)
	require.NoError(t, err)
	require.Equal(t, want, done)
	require.Equal(t, "two", read(t, staged)["m/1/model.py"], "a staged file lives on")
	_, err = s.Get("r2")
	require.ErrorIs(t, err, repo.ErrNoRevision)
	require.NoError(t, s.Stage(t.Context(), "r1", []string{"m"}, staged))
	require.Equal(t, "one", read(t, staged)["m/1/model.py"])
	r, err := s.Import(t.Context(), dir, by("again"))
	require.NoError(t, err)
	require.Equal(t, "r3", r.ID)
}

func TestAStoreHasOneOwner(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	_, err := repo.Open(dir, repo.Options{})
	require.ErrorContains(t, err, "another conch")
}

func TestAnImportIsGivenUpWhenItsCallerIs(t *testing.T) {
	dir := t.TempDir()
	tree{"m/config.pbtxt": config, "m/1/model.py": "one"}.write(t, dir)
	s := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Import(ctx, dir, by("never"))
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Import(t.Context(), filepath.Join(dir, "absent"), by("never"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// However an operator's directory changes, a revision staged later is what the
// directory was at its import, and the directory is never written.
func TestARevisionIsWhatTheDirectoryWas(t *testing.T) {
	s := open(t, t.TempDir())
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp("", "conch-repo")
		require.NoError(t, err)
		defer os.RemoveAll(root)
		dir := filepath.Join(root, "operator")
		was := map[string]tree{}
		for range rapid.IntRange(1, 5).Draw(t, "imports") {
			for range rapid.IntRange(1, 4).Draw(t, "edits") {
				model := rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model")
				tree{model + "/config.pbtxt": config, model + "/1/model.py": ""}.write(t, dir)
				file := model + "/" + rapid.SampledFrom([]string{"1/model.py", "1/weights", "2/model.py", "notes"}).Draw(t, "file")
				if rapid.Bool().Draw(t, "remove") && !strings.HasSuffix(file, ".py") {
					_ = os.Remove(filepath.Join(dir, file))
				} else {
					tree{file: rapid.StringN(0, 3, -1).Draw(t, "content")}.write(t, dir)
				}
			}
			before := read(t, dir)
			r, err := s.Import(context.Background(), dir, by("edit"))
			require.NoError(t, err)
			require.Equal(t, before, read(t, dir), "the operator's directory is only read")
			was[r.ID] = before
		}
		for id, files := range was {
			r, err := s.Get(id)
			require.NoError(t, err)
			var names []string
			for _, m := range r.Models {
				names = append(names, m.Name)
			}
			staged := filepath.Join(root, "staged")
			require.NoError(t, s.Stage(context.Background(), id, names, staged))
			got := read(t, staged)
			for path, content := range files {
				if !strings.HasSuffix(path, "config.pbtxt") {
					require.Equal(t, content, got[path], path)
				}
			}
			require.Len(t, got, len(files))
			require.NoError(t, s.Unstage(context.Background(), staged))
		}
	})
}
