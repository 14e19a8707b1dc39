// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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

func TestAPolicyThatIsNotInUseIsAskedOnce(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "calm"))
	require.NoError(t, err)
	before := w.Status()
	answer, err := w.Try(t.Context(), mode(t, "good"), snapshot(1, 30*time.Second))
	require.NoError(t, err)
	require.NotEmpty(t, answer.GetPolicy())
	require.Equal(t, before.Name, w.Status().Name, "it does not come into use")
	require.Nil(t, w.LastGood(), "and its answer counts for nothing")
	_, err = w.Try(t.Context(), policyhost.Ref{Name: "nobody"}, snapshot(1, 30*time.Second))
	require.ErrorIs(t, err, policyhost.ErrUnknownPolicy)
}
