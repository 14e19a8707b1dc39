// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/repo"
)

func TestCompareSaysWhichFilesAndFieldsDiffer(t *testing.T) {
	dir := t.TempDir()
	s := open(t, t.TempDir())
	tree{
		"m/config.pbtxt": "backend: \"python\"\n# two fit the cache\nmax_batch_size: 2\ninput [ { name: \"A\" data_type: TYPE_FP32 dims: 4 }, { name: \"C\" data_type: TYPE_FP32 dims: 1 } ]\noutput { name: \"B\" data_type: TYPE_FP32 dims: 4 }\n",
		"m/1/model.py":   "one", "gone/config.pbtxt": config, "gone/1/model.py": "one", "same/config.pbtxt": config, "same/1/model.py": "one", "form/config.pbtxt": config, "form/1/model.py": "one",
	}.write(t, dir)
	size := func(model, path string) int64 {
		info, err := os.Stat(filepath.Join(dir, model, path))
		require.NoError(t, err)
		return info.Size()
	}
	before := size("m", "config.pbtxt")
	_, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "gone")))
	tree{
		"m/config.pbtxt":    "backend: \"python\"\n# eight do, too\nmax_batch_size: 8 # tried\ninput { name: \"A\" data_type: TYPE_FP32 dims: 4 }\noutput { name: \"B\" data_type: TYPE_FP32 dims: 4 }\n\nparameters { key: \"slo_ms\" value { string_value: \"20\" } }\n",
		"m/2/model.py":      "three",
		"form/config.pbtxt": "\n" + config,
		"new/config.pbtxt":  config, "new/1/model.py": "one",
	}.write(t, dir)
	_, err = s.Import(t.Context(), dir, by("second"))
	require.NoError(t, err)
	_, err = s.Unload(t.Context(), "", []string{"same"}, by("unload"))
	require.NoError(t, err)

	c, err := s.Compare("r1", "")
	require.NoError(t, err)
	require.Equal(t, "r3", c.To)
	require.Equal(t, []repo.ModelComparison{
		{
			Model: "form", Change: repo.Changed, Text: "config.pbtxt differs in form or order alone",
			Files: []repo.FileComparison{{Path: "config.pbtxt", Change: repo.Changed, Before: int64(len(config)), After: int64(len(config)) + 1}},
		},
		{Model: "gone", Change: repo.Removed, Files: []repo.FileComparison{{Path: "1/model.py", Change: repo.Removed, Before: 3}, {Path: "config.pbtxt", Change: repo.Removed, Before: int64(len(config))}}},
		{
			Model: "m", Change: repo.Changed,
			Files: []repo.FileComparison{{Path: "2/model.py", Change: repo.Added, After: 5}, {Path: "config.pbtxt", Change: repo.Changed, Before: before, After: size("m", "config.pbtxt")}},
			Fields: []repo.FieldComparison{
				{Field: "max_batch_size", Change: repo.Changed, Line: 3, Before: "# two fit the cache\nmax_batch_size: 2", After: "# eight do, too\nmax_batch_size: 8  # tried"},
				{Field: `parameters "slo_ms"`, Change: repo.Added, Line: 7, After: `parameters { key: "slo_ms" value { string_value: "20" } }`},
				{Field: `input "C"`, Change: repo.Removed, Line: 4, Before: `input { name: "C" data_type: TYPE_FP32 dims: 1 }`},
			},
		},
		{Model: "new", Change: repo.Added, Files: []repo.FileComparison{{Path: "1/model.py", Change: repo.Added, After: 3}, {Path: "config.pbtxt", Change: repo.Added, After: int64(len(config))}}},
		{Model: "same", Notes: []string{"unloaded"}},
	}, c.Models)

	last, err := s.Compare("", "")
	require.NoError(t, err)
	require.Equal(t, "r2", last.From, "by itself, with the one before")
	require.Len(t, last.Models, 1)
	first, err := s.Compare("", "r1")
	require.NoError(t, err)
	require.Empty(t, first.From, "the first has nothing before it")
	require.Len(t, first.Models, 4)
	_, err = s.Compare("r9", "")
	require.ErrorIs(t, err, repo.ErrNoRevision)
}

// The oldest revision that a collection left still says what it changed, as far as it noted that down.
func TestCompareWithARevisionThatIsKeptNoMore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, t.TempDir())
	tree{"m/config.pbtxt": config, "m/1/model.py": "one", "m/1/old.py": "1", "gone/config.pbtxt": config, "gone/1/model.py": "one"}.write(t, dir)
	_, err := s.Import(t.Context(), dir, by("first"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "gone")))
	require.NoError(t, os.Remove(filepath.Join(dir, "m/1/old.py")))
	tree{"m/config.pbtxt": config + "# more\n", "m/1/model.py": "three", "m/1/new.py": "22", "new/config.pbtxt": config, "new/1/model.py": "one"}.write(t, dir)
	_, err = s.Import(t.Context(), dir, by("second"))
	require.NoError(t, err)
	whole, err := s.Compare("", "")
	require.NoError(t, err)
	require.False(t, whole.Partial)
	_, err = s.Collect(t.Context(), repo.Retention{Newest: 1})
	require.NoError(t, err)

	c, err := s.Compare("", "")
	require.NoError(t, err)
	require.True(t, c.Partial)
	require.Equal(t, "r1", c.From)
	require.Equal(t, "r2", c.To)
	require.Equal(t, []repo.ModelComparison{
		{Model: "gone", Change: repo.Removed},
		{Model: "m", Change: repo.Changed, Text: "config.pbtxt cannot be compared field by field: r1 is kept no more", Files: []repo.FileComparison{
			{Path: "1/model.py", Change: repo.Changed, Before: repo.UnknownSize, After: 5},
			{Path: "1/new.py", Change: repo.Added, After: 2},
			{Path: "1/old.py", Change: repo.Removed, Before: repo.UnknownSize},
			{Path: "config.pbtxt", Change: repo.Changed, Before: repo.UnknownSize, After: int64(len(config)) + 7},
		}},
		{Model: "new", Change: repo.Added, Files: []repo.FileComparison{{Path: "1/model.py", Change: repo.Added, After: 3}, {Path: "config.pbtxt", Change: repo.Added, After: int64(len(config))}}},
	}, c.Models)
	require.Equal(t, whole.Models[2], c.Models[2], "what is new needs nothing older")

	_, err = s.Compare("r1", "r2")
	require.ErrorIs(t, err, repo.ErrNoRevision, "a revision that is kept no more is not found")
}
