// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheStateDirectoryIsConchsAlone(t *testing.T) {
	mode := func(dir string) os.FileMode {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	dir := filepath.Join(t.TempDir(), "new", "state")
	require.NoError(t, closeToOthers(dir, slog.New(slog.DiscardHandler)))
	require.Equal(t, os.FileMode(0o700), mode(dir))

	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, closeToOthers(dir, slog.New(slog.DiscardHandler)), "it is empty, and is taken")
	require.Equal(t, os.FileMode(0o700), mode(dir))

	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, databaseFile), nil, 0o600))
	require.NoError(t, closeToOthers(dir, slog.New(slog.DiscardHandler)), "it is conch's of before")
	require.Equal(t, os.FileMode(0o700), mode(dir))

	other := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "diary.txt"), nil, 0o600))
	require.NoError(t, os.Chmod(other, 0o755))
	require.ErrorContains(t, closeToOthers(other, slog.New(slog.DiscardHandler)), "has other things in it and others may enter it (mode 0755); chmod 700 it")
	require.Equal(t, os.FileMode(0o755), mode(other), "what is not conch's is left alone")
}
