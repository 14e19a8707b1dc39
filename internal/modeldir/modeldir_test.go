// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package modeldir_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/modeldir"
)

// repository makes a model directory "m", itself a link, with a file, links and what is no file.
func repository(t *testing.T) string {
	t.Helper()
	dir, model := t.TempDir(), filepath.Join(t.TempDir(), "m-v1")
	require.NoError(t, os.MkdirAll(filepath.Join(model, "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(model, "config.pbtxt"), []byte("text"), 0o600))
	require.NoError(t, os.Symlink(model, filepath.Join(dir, "m")))
	for name, to := range map[string]string{
		"near": "../config.pbtxt", "far": "/etc/passwd", "up": "../../../secret", "device": "/dev/zero", "gone": "nothing", "absolute": filepath.Join(model, "config.pbtxt"),
		"to_pipe": "pipe",
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(model, "1", name)))
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(model, "1", "pipe"), 0o600))
	return dir
}

func TestFilesOfTheModelAlone(t *testing.T) {
	dir := repository(t)
	root, err := modeldir.Root(filepath.Join(dir, "m"))
	require.NoError(t, err)
	defer root.Close()
	for name, want := range map[string]error{
		"config.pbtxt": nil, "1/near": nil, "1/far": modeldir.ErrOutside, "1/up": modeldir.ErrOutside, "1/absolute": modeldir.ErrOutside,
		"1/device": modeldir.ErrOutside, "1/pipe": modeldir.ErrNotRegular, "1/to_pipe": modeldir.ErrNotRegular, "1": modeldir.ErrNotRegular,
		"1/gone": fs.ErrNotExist, "../m/config.pbtxt": modeldir.ErrOutside,
	} {
		f, info, err := modeldir.OpenIn(root, name)
		require.ErrorIs(t, err, want, name)
		if want == nil {
			require.EqualValues(t, 4, info.Size())
			require.NoError(t, f.Close())
		}
		text, err := modeldir.ReadFile(filepath.Join(dir, "m"), name)
		require.ErrorIs(t, err, want, name)
		if want == nil {
			require.Equal(t, "text", string(text))
		}
		if !fs.ValidPath(name) || name == "1" {
			continue
		}
		text, err = fs.ReadFile(modeldir.FS(dir), "m/"+name)
		require.ErrorIs(t, err, want, name)
		if want == nil {
			require.Equal(t, "text", string(text))
		}
	}
}

func TestWhatAnOperatorNamesMayBeALinkToAnywhere(t *testing.T) {
	dir := repository(t)
	f, _, err := modeldir.Open(filepath.Join(dir, "m", "1", "absolute"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for _, name := range []string{"pipe", "device", "to_pipe"} {
		_, _, err = modeldir.Open(filepath.Join(dir, "m", "1", name))
		require.ErrorIs(t, err, modeldir.ErrNotRegular, name)
	}
	_, err = modeldir.Root(filepath.Join(dir, "m", "1", "pipe"))
	require.ErrorContains(t, err, "not a directory", "and nothing waits for a writer")
}

func TestARepositoryIsATree(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "m", "1", "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m", "1", "sub", "file"), []byte("text"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m", "config.pbtxt"), nil, 0o600))
	require.NoError(t, fstest.TestFS(modeldir.FS(dir), "m/1/sub/file", "m/config.pbtxt"))
}
