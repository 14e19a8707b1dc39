// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func inode(t *testing.T, path string) uint64 {
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestStagingCopiesSwapsAndLeavesAlone(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	tree{"m/config.pbtxt": config, "m/1/model.py": "one", "m/1/weights": "w", "n/config.pbtxt": config, "n/1/model.py": "one"}.write(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m", "stub"), []byte("#!"), 0o755))
	s := open(t, state)
	first, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	a, b := filepath.Join(state, "a", "repository"), filepath.Join(state, "b", "repository")
	require.NoError(t, s.Stage(t.Context(), "", []string{"m", "n"}, a))
	require.NoError(t, s.Stage(t.Context(), first.ID, []string{"m"}, b))
	require.Equal(t, []string{"m/1/model.py", "m/1/weights", "m/config.pbtxt", "m/stub", "n/1/model.py", "n/config.pbtxt"}, slices.Sorted(maps.Keys(read(t, a))))
	require.NotContains(t, read(t, a)["m/config.pbtxt"], "max_queue_delay_microseconds")
	require.NotEqual(t, inode(t, a+"/m/1/weights"), inode(t, b+"/m/1/weights"), "each partition has its own file")
	require.NoError(t, os.Chmod(a+"/m/1/weights", 0o644))
	tree{"1/weights": "W"}.write(t, a+"/m") // as a server could
	content, err := s.ReadFile("", "m", "1/weights")
	require.NoError(t, err)
	require.Equal(t, "w", string(content), "the store is another file")
	require.Equal(t, "w", read(t, b)["m/1/weights"], "and so is that of another partition")
	require.NoError(t, os.Truncate(a+"/m/1/weights", 0))
	require.NoError(t, s.Stage(t.Context(), first.ID, []string{"m"}, a))
	require.Equal(t, "w", read(t, a)["m/1/weights"], "what is there in part is staged again")
	info, err := os.Stat(a + "/m/stub")
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o555), info.Mode().Perm(), "executables stay so, and nothing is writable")

	before, err := os.Stat(a + "/m")
	require.NoError(t, err)
	require.NoError(t, s.Stage(t.Context(), first.ID, []string{"m", "n"}, a))
	after, err := os.Stat(a + "/m")
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "what is staged is not touched")

	tree{"m/1/model.py": "two"}.write(t, dir)
	second, err := s.Import(t.Context(), dir, by("second"))
	require.NoError(t, err)
	tree{"1/__pycache__/model.pyc": "compiled by the server"}.write(t, a+"/m")
	require.NoError(t, s.Stage(t.Context(), second.ID, []string{"m"}, a))
	require.Equal(t, "two", read(t, a)["m/1/model.py"])
	require.Equal(t, "one", read(t, b)["m/1/model.py"], "the other partition is not changed")
	require.NotContains(t, read(t, a), "m/1/__pycache__/model.pyc")
	names, err := s.Staged(a)
	require.NoError(t, err)
	require.Equal(t, []string{"m", "n"}, names)

	require.NoError(t, s.Unstage(t.Context(), a, "m", "unknown"))
	require.NoDirExists(t, a+"/m")
	require.NoError(t, s.Unstage(t.Context(), a))
	left, err := os.ReadDir(filepath.Dir(a))
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, s.Unstage(t.Context(), a), "nothing to do is no error")
}

func TestStagingOneDirectoryAtOnce(t *testing.T) {
	source, dir := t.TempDir(), filepath.Join(t.TempDir(), "staged")
	files, names := tree{}, []string{}
	for i := range 12 {
		name := fmt.Sprintf("m%02d", i)
		names = append(names, name)
		files[name+"/config.pbtxt"], files[name+"/1/model.py"] = config, name
	}
	files.write(t, source)
	s := open(t, t.TempDir())
	r, err := s.Import(t.Context(), source, by("start"))
	require.NoError(t, err)
	var all errgroup.Group
	for _, name := range names {
		all.Go(func() error { return s.Stage(t.Context(), r.ID, []string{name}, dir) })
	}
	require.NoError(t, all.Wait())
	have, err := s.Staged(dir)
	require.NoError(t, err)
	require.Equal(t, names, have)
	for _, name := range names[:6] {
		all.Go(func() error { return s.Unstage(t.Context(), dir, name) })
	}
	require.NoError(t, all.Wait())
	have, err = s.Staged(dir)
	require.NoError(t, err)
	require.Equal(t, names[6:], have)
	for _, name := range names[6:] {
		require.Equal(t, name, read(t, dir)[name+"/1/model.py"])
	}
}

// A machine that loses its power may keep names of files and nothing in them.
func TestStagingAfterALossOfPower(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	tree{"m/config.pbtxt": config, "m/1/model.py": "one"}.write(t, dir)
	_, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	staged := filepath.Join(state, "p", "repository")
	require.NoError(t, s.Stage(t.Context(), "", []string{"m"}, staged))
	want := read(t, staged)
	for _, lost := range []string{"repository/m/config.pbtxt", "repository/m/1/model.py", "repository.staged.json"} {
		require.NoError(t, os.Truncate(filepath.Join(state, "p", lost), 0))
		require.NoError(t, s.Stage(t.Context(), "", []string{"m"}, staged), lost)
		require.Equal(t, want, read(t, staged), lost)
		names, err := s.Staged(staged)
		require.NoError(t, err)
		require.Equal(t, []string{"m"}, names)
	}
}

func TestStagingAcrossFileSystemsCopies(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "conch-repo-test")
	if err != nil {
		t.Skip("no second file system: ", err)
	}
	defer os.RemoveAll(other)
	dir, state := t.TempDir(), t.TempDir()
	tree{"m/config.pbtxt": config, "m/1/model.py": "one"}.write(t, dir)
	s := open(t, state)
	_, err = s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	require.NoError(t, s.Stage(t.Context(), "", []string{"m"}, filepath.Join(other, "repository")))
	require.Equal(t, "one", read(t, other)["repository/m/1/model.py"])
}
