// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSocketDirectoriesOfTheKilledAreRemoved: of a process that was killed only the
// lock is gone. Those of processes that live stay, and so does what was made just now.
func TestSocketDirectoriesOfTheKilledAreRemoved(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	now := time.Now()
	killed, other := filepath.Join(temp, socketDirs+"killed"), filepath.Join(temp, "another")
	for _, dir := range []string{killed, other} {
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "plugin1"), nil, 0o600))
	}
	lives, err := newSocketDir(now, flock)
	require.NoError(t, err)
	require.DirExists(t, killed, "it may be about to be locked")

	later := now.Add(2 * abandoned)
	next, err := newSocketDir(later, flock)
	require.NoError(t, err)
	require.NoDirExists(t, killed)
	require.DirExists(t, lives.path)
	require.DirExists(t, other)
	lives.remove()
	next.remove()
	left, err := filepath.Glob(filepath.Join(temp, socketDirs+"*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestSocketDirectoriesWithoutLocks: on a file system without locks a policy starts nevertheless. A directory that is left there is not
// removed, since its process is not known.
func TestSocketDirectoriesWithoutLocks(t *testing.T) {
	for _, none := range []error{syscall.ENOLCK, syscall.ENOTSUP, syscall.ENOSYS} {
		temp := t.TempDir()
		t.Setenv("TMPDIR", temp)
		without := func(int) error { return none }
		now := time.Now()
		lives, err := newSocketDir(now, without)
		require.NoError(t, err)
		later := now.Add(2 * abandoned)
		next, err := newSocketDir(later, without)
		require.NoError(t, err)
		require.DirExists(t, lives.path, "its process may live")
		lives.remove()
		next.remove()
		left, err := filepath.Glob(filepath.Join(temp, socketDirs+"*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// TestALockThatAnotherHolds is no file system without locks: the directory is another's.
func TestALockThatAnotherHolds(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	_, err := newSocketDir(time.Now(), func(int) error { return syscall.EWOULDBLOCK })
	require.ErrorIs(t, err, syscall.EWOULDBLOCK)
}
