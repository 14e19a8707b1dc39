// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What cannot be opened for want of file descriptors is not damaged: to mend it would take good content out.
func TestVerifyTakesNothingOutThatItCouldNotOpen(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	s := open(t, state)
	tree{"m/config.pbtxt": config, "m/1/model.py": "one"}.write(t, dir)
	_, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	before := read(t, filepath.Join(state, "files"))
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 3
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	_, err = s.Verify(t.Context(), true)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.Equal(t, before, read(t, filepath.Join(state, "files")))
	require.ErrorIs(t, err, syscall.EMFILE)
}
