// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/repo"
)

// An import says how much of the directory it has read; what the store has already counts too.
func TestAnImportReportsHowFarItIs(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"a/1/model.onnx": 40 << 20, "b/1/model.onnx": 20 << 20, "b/config.pbtxt": 100, "b/.git/objects": 1 << 20} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, make([]byte, size), 0o644))
		old := time.Now().Add(-time.Hour)
		require.NoError(t, os.Chtimes(path, old, old))
	}
	store, err := repo.Open(t.TempDir(), repo.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	for _, again := range []bool{false, true} {
		var all []repo.Progress
		_, err = store.ImportReporting(t.Context(), dir, repo.Origin{Time: time.Now()}, func(p repo.Progress) { all = append(all, p) })
		require.NoError(t, err)
		require.Equal(t, repo.Progress{All: 60<<20 + 100, Model: "a"}, all[0])
		before := int64(0)
		var models []string
		for _, p := range all {
			require.Equal(t, all[0].All, p.All)
			require.GreaterOrEqual(t, p.Done, before)
			require.LessOrEqual(t, p.Done, p.All)
			if before = p.Done; len(models) == 0 || models[len(models)-1] != p.Model {
				models = append(models, p.Model)
				require.Contains(t, []int64{0, 40 << 20}, p.Done, "where model %s begins", p.Model)
			}
		}
		require.Equal(t, []string{"a", "b"}, models)
		require.GreaterOrEqual(t, len(all), 3, "a large file is reported while it is read; again: %t", again)
	}
}
