// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/modeldir"
)

func TestAModelIsCopiedWithoutWhatLeadsOutOfIt(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "v1", "__pycache__"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "v1", "model.py"), []byte("one"), 0o600))
	require.NoError(t, os.Symlink("v1", filepath.Join(dir, "1")))
	into := filepath.Join(t.TempDir(), "m")
	require.NoError(t, copyModel(t.Context(), dir, into))
	text, err := os.ReadFile(filepath.Join(into, "1", "model.py"))
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	require.NoDirExists(t, filepath.Join(into, "1", "__pycache__"))

	for name, put := range map[string]func(to string) error{
		"secret": func(to string) error { return os.Symlink("/etc/passwd", to) },
		"pipe":   func(to string) error { return syscall.Mkfifo(to, 0o600) },
		"up":     func(to string) error { return os.Symlink(".", to) },
	} {
		to := filepath.Join(dir, "v1", name)
		require.NoError(t, put(to))
		err := copyModel(t.Context(), dir, filepath.Join(t.TempDir(), "m"))
		switch name {
		case "secret":
			require.ErrorIs(t, err, modeldir.ErrOutside)
		case "pipe":
			require.ErrorIs(t, err, modeldir.ErrNotRegular)
		case "up":
			require.ErrorIs(t, err, syscall.ELOOP)
		}
		require.NoError(t, os.Remove(to))
	}
}
