// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/policyhost"
)

// The list of the built-in policies is asked of conch-policies once, and again where that is another file.
func TestListIsAskedOnce(t *testing.T) {
	path, asked := filepath.Join(t.TempDir(), "conch-policies"), filepath.Join(t.TempDir(), "asked")
	install := func(names string) {
		script := "#!/bin/sh\necho asked >>'" + asked + "'\necho " + names + "\n"
		require.NoError(t, os.WriteFile(path+".new", []byte(script), 0o755))
		require.NoError(t, os.Rename(path+".new", path))
	}
	install("calm")
	w := newWorld(t, func(o *policyhost.Options) { o.Builtins = path })
	list := func() (names []string) {
		known, err := w.List(t.Context())
		require.NoError(t, err)
		for _, k := range known {
			names = append(names, k.Name)
		}
		return names
	}
	for range 3 {
		require.Equal(t, []string{"calm"}, list())
	}
	times, err := os.ReadFile(asked)
	require.NoError(t, err)
	require.Equal(t, "asked\n", string(times))

	install("calm wild")
	require.Equal(t, []string{"calm", "wild"}, list())
	require.NoError(t, os.Remove(path))
	_, err = w.List(t.Context())
	require.ErrorIs(t, err, policyhost.ErrStart, "what is not there any more is not listed")
}
