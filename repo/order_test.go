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

const overriding = `{"backend": "python", "maxBatchSize": 2, "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": ["4"]}],
	"output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [4]}], "dynamic_batching": {}}`

// orders is a store with an imported repository of models m and n.
func orders(t *testing.T) (s *repo.Store, dir string, first *repo.Revision) {
	dir = t.TempDir()
	tree{"m/config.pbtxt": config, "m/1/model.py": "one", "n/config.pbtxt": config, "n/1/model.py": "n"}.write(t, dir)
	s = open(t, t.TempDir())
	first, err := s.Import(t.Context(), dir, by("start"))
	require.NoError(t, err)
	return s, dir, first
}

func staged(t *testing.T, s *repo.Store, r *repo.Revision, model string) tree {
	dir := filepath.Join(t.TempDir(), "staged")
	require.NoError(t, s.Stage(t.Context(), r.ID, []string{model}, dir))
	return read(t, dir)
}

func TestALoadIsOfOneModel(t *testing.T) {
	s, dir, first := orders(t)
	same, err := s.Load(t.Context(), first.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.Equal(t, first.ID, same.ID, "nothing changed")

	tree{"m/1/model.py": "two", "n/1/model.py": "changed too"}.write(t, dir)
	r, err := s.Load(t.Context(), first.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, r.Diff.ChangedModels(), "nobody asked for n")
	require.Equal(t, "two", staged(t, s, r, "m")["m/1/model.py"])
	require.Equal(t, "tester", r.Author)

	_, err = s.Load(t.Context(), r.ID, dir, repo.Order{Model: "nobody"}, by("load"))
	require.ErrorIs(t, err, repo.ErrNoModel)
	_, err = s.Load(t.Context(), r.ID, dir, repo.Order{Model: "../m"}, by("load"))
	require.ErrorIs(t, err, repo.ErrNoModel)
	tree{"m/config.pbtxt": "nonsense {"}.write(t, dir)
	_, err = s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.ErrorIs(t, err, repo.ErrInvalidModel)
	now, err := s.Current()
	require.NoError(t, err)
	require.Equal(t, r.ID, now.ID, "a refused load is no revision")
}

func TestOtherTimesLoadTheSameContentAgain(t *testing.T) {
	s, dir, first := orders(t)
	past := time.Unix(1e9, 0)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "m", "1", "model.py"), past, past))
	unmoved, err := s.Import(t.Context(), dir, by("import"))
	require.NoError(t, err)
	require.Equal(t, first.ID, unmoved.ID, "an import looks at content")
	r, err := s.Load(t.Context(), first.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, r.Diff.Loaded)
	require.True(t, first.Model("m").Loads(r.Model("m")))
	again, err := s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.Equal(t, r.ID, again.ID)
}

func TestAnOverriddenConfigStays(t *testing.T) {
	s, dir, first := orders(t)
	text := overriding
	r, err := s.Load(t.Context(), first.ID, dir, repo.Order{Model: "m", Config: &text}, by("load"))
	require.NoError(t, err)
	m := r.Model("m")
	require.EqualValues(t, 2, m.Config.GetMaxBatchSize())
	require.Zero(t, m.Config.GetDynamicBatching().GetMaxQueueDelayMicroseconds())
	require.NotNil(t, m.Written.GetDynamicBatching(), "as its author wrote it")
	require.Equal(t, "one", staged(t, s, r, "m")["m/1/model.py"])
	for what, do := range map[string]func() (*repo.Revision, error){
		"a plain load": func() (*repo.Revision, error) {
			return s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m"}, by("load"))
		},
		"the same override": func() (*repo.Revision, error) {
			return s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m", Config: &text}, by("load"))
		},
		"an import": func() (*repo.Revision, error) { return s.Import(t.Context(), dir, by("restart")) },
	} {
		same, err := do()
		require.NoError(t, err)
		require.Equal(t, r.ID, same.ID, what)
	}
	tree{"m/1/model.py": "two"}.write(t, dir)
	back, err := s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.EqualValues(t, 8, back.Model("m").Config.GetMaxBatchSize(), "changed files end it")

	for _, bad := range []string{"", "[]", "{x", `{"no_such_field": 1}`, `{"name": "other"}`} {
		_, err := s.Load(t.Context(), back.ID, dir, repo.Order{Model: "m", Config: &bad}, by("load"))
		require.ErrorIs(t, err, repo.ErrOverride, "%q", bad)
	}
}

func TestFilesReplaceTheDirectory(t *testing.T) {
	s, dir, first := orders(t)
	text := overriding
	order := repo.Order{Model: "m", Config: &text, Files: map[string][]byte{"3/model.py": []byte("three")}}
	r, err := s.Load(t.Context(), first.ID, dir, order, by("load"))
	require.NoError(t, err)
	files := staged(t, s, r, "m")
	require.Equal(t, "three", files["m/3/model.py"])
	require.Len(t, files, 2, "and its config")
	kept, err := s.Import(t.Context(), dir, by("restart"))
	require.NoError(t, err)
	require.Equal(t, r.ID, kept.ID)
	back, err := s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.Equal(t, "one", staged(t, s, back, "m")["m/1/model.py"])

	// A model that only the client has.
	order.Model = "new"
	r, err = s.Load(t.Context(), back.ID, dir, order, by("load"))
	require.NoError(t, err)
	require.Equal(t, []string{"new"}, r.Diff.Added)
	kept, err = s.Import(t.Context(), dir, by("restart"))
	require.NoError(t, err)
	require.NotNil(t, kept.Model("new"))
	_, err = s.Load(t.Context(), r.ID, dir, repo.Order{Model: "new"}, by("load"))
	require.ErrorIs(t, err, repo.ErrNoModel)
	_, err = s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m", Files: order.Files}, by("load"))
	require.ErrorIs(t, err, repo.ErrOverride, "files without a config")
	order.Files = map[string][]byte{"../../m/1/model.py": nil}
	_, err = s.Load(t.Context(), r.ID, dir, order, by("load"))
	require.ErrorIs(t, err, repo.ErrOverride, "files elsewhere")
}

func TestAnUnloadStaysUntilALoad(t *testing.T) {
	s, dir, first := orders(t)
	text := overriding
	r, err := s.Load(t.Context(), first.ID, dir, repo.Order{Model: "m", Config: &text}, by("load"))
	require.NoError(t, err)
	r, err = s.Unload(t.Context(), r.ID, []string{"m", "nobody"}, by("unload"))
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, r.Diff.Unloaded)
	same, err := s.Unload(t.Context(), r.ID, []string{"m"}, by("unload"))
	require.NoError(t, err)
	require.Equal(t, r.ID, same.ID)
	kept, err := s.Import(t.Context(), dir, by("restart"))
	require.NoError(t, err)
	require.True(t, kept.Model("m").Unloaded)
	back, err := s.Load(t.Context(), kept.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, back.Diff.Loaded)
	require.EqualValues(t, 8, back.Model("m").Config.GetMaxBatchSize(), "an unload forgets an override")
}

func TestAnEnsembleIsLoadedWithItsMembers(t *testing.T) {
	s, dir, _ := orders(t)
	tree{"e/config.pbtxt": `platform: "ensemble"
max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: 4 }
output { name: "B" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling { step { model_name: "m" model_version: -1 input_map { key: "A" value: "A" } output_map { key: "B" value: "B" } } }
`, "e/1/.keep": ""}.write(t, dir)
	first, err := s.Import(t.Context(), dir, by("import"))
	require.NoError(t, err)
	r, err := s.Load(t.Context(), first.ID, dir, repo.Order{Model: "e"}, by("load"))
	require.NoError(t, err)
	require.False(t, r.Model("m").Dependent, "it was loaded before")
	r, err = s.Unload(t.Context(), r.ID, []string{"m"}, by("unload"))
	require.NoError(t, err)
	r, err = s.Load(t.Context(), r.ID, dir, repo.Order{Model: "e"}, by("load"))
	require.NoError(t, err)
	require.False(t, r.Model("m").Unloaded)
	require.True(t, r.Model("m").Dependent)
	r, err = s.Load(t.Context(), r.ID, dir, repo.Order{Model: "m"}, by("load"))
	require.NoError(t, err)
	require.False(t, r.Model("m").Dependent, "an order of its own")
}

// What an order changed is taken back; what others ordered after it stays.
func TestRevertIsOfOneOrder(t *testing.T) {
	s, dir, first := orders(t)
	override := overriding
	order, err := s.Load(t.Context(), first.ID, dir, repo.Order{Model: "m", Config: &override}, by("load"))
	require.NoError(t, err)
	tree{"new/config.pbtxt": config, "new/1/model.py": "new"}.write(t, dir)
	other, err := s.Load(t.Context(), order.ID, dir, repo.Order{Model: "new"}, by("load"))
	require.NoError(t, err)

	back, err := s.Revert(t.Context(), other.ID, order.ID, first.ID, by("revert"))
	require.NoError(t, err)
	require.Equal(t, first.Model("m"), back.Model("m"))
	require.Equal(t, other.Model("new"), back.Model("new"))
	require.Equal(t, []string{"m"}, back.Diff.ChangedModels())

	gone, err := s.Revert(t.Context(), back.ID, other.ID, order.ID, by("revert"))
	require.NoError(t, err)
	require.Equal(t, []string{"new"}, gone.Diff.Removed)

	unloaded, err := s.Unload(t.Context(), other.ID, []string{"m"}, by("unload"))
	require.NoError(t, err)
	stays, err := s.Revert(t.Context(), unloaded.ID, order.ID, first.ID, by("revert"))
	require.NoError(t, err)
	require.Equal(t, unloaded.Model("m"), stays.Model("m"), "it was ordered again since")
	_, err = s.Revert(t.Context(), "r99", order.ID, first.ID, by("revert"))
	require.ErrorIs(t, err, repo.ErrNoRevision)
}
