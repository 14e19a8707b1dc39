// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/repo"
)

// derivation is a merge of the models m and n of orders, with two parts.
func derivation(r *repo.Revision, digest string) repo.Derivation {
	return repo.Derivation{
		Recipe: "group", Mode: "backbone", Digest: digest, Parts: []string{"group", "group-head-m"},
		Members: map[string]string{"m": r.Model("m").Digest, "n": r.Model("n").Digest},
	}
}

func parts(t *testing.T, content string) string {
	dir := t.TempDir()
	tree{
		"group/config.pbtxt": config, "group/1/model.py": content, "group-head-m/config.pbtxt": config, "group-head-m/1/model.py": content,
	}.write(t, dir)
	return dir
}

func TestADerivedModelStaysThroughImports(t *testing.T) {
	s, dir, first := orders(t)
	r, err := s.Derive(t.Context(), parts(t, "backbone"), derivation(first, "d1"), by("merge"))
	require.NoError(t, err)
	require.Equal(t, []string{"group", "group-head-m"}, r.Diff.Added)
	require.Equal(t, "backbone", staged(t, s, r, "group")["group/1/model.py"])
	require.Equal(t, "d1", r.Model("group").Derived.Digest)

	same, err := s.Import(t.Context(), dir, by("restart"))
	require.NoError(t, err)
	require.Equal(t, r.ID, same.ID)
	again, err := s.Derive(t.Context(), parts(t, "backbone"), derivation(first, "d1"), by("merge"))
	require.NoError(t, err)
	require.Equal(t, r.ID, again.ID, "nothing changed")

	other, err := s.Derive(t.Context(), parts(t, "made again"), derivation(first, "d2"), by("merge"))
	require.NoError(t, err)
	require.Equal(t, []string{"group", "group-head-m"}, other.Diff.ChangedModels())
	back, err := s.Rollback(t.Context(), r.ID, by("back"))
	require.NoError(t, err)
	require.Equal(t, "backbone", staged(t, s, back, "group")["group/1/model.py"])
}

func TestADerivedModelGoesWithItsMembers(t *testing.T) {
	for name, change := range map[string]tree{
		"a member changes":              {"m/1/model.py": "two"},
		"the operator takes its name":   {"group/config.pbtxt": config, "group/1/model.py": "the operator's"},
		"a member's configuration does": {"n/config.pbtxt": config + "# changed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir, first := orders(t)
			_, err := s.Derive(t.Context(), parts(t, "backbone"), derivation(first, "d1"), by("merge"))
			require.NoError(t, err)
			change.write(t, dir)
			r, err := s.Import(t.Context(), dir, by("import"))
			require.NoError(t, err)
			require.Nil(t, r.Model("group-head-m"), "no part is left alone")
			if g := r.Model("group"); g != nil {
				require.Nil(t, g.Derived)
			}
			require.Len(t, r.Stale, 1)
			require.Equal(t, "group", r.Stale[0].Recipe)
		})
	}
}

func TestWhatIsMadeOfOtherMembersIsRefused(t *testing.T) {
	s, dir, first := orders(t)
	d := derivation(first, "d1")
	tree{"m/1/model.py": "two"}.write(t, dir)
	_, err := s.Import(t.Context(), dir, by("import"))
	require.NoError(t, err)
	_, err = s.Derive(t.Context(), parts(t, "backbone"), d, by("merge"))
	require.ErrorIs(t, err, repo.ErrStale)
	d.Members = map[string]string{"nobody": "x"}
	_, err = s.Derive(t.Context(), parts(t, "backbone"), d, by("merge"))
	require.ErrorIs(t, err, repo.ErrNoModel)
	d.Members, d.Parts = nil, []string{"m"}
	_, err = s.Derive(t.Context(), parts(t, "backbone"), d, by("merge"))
	require.ErrorContains(t, err, `another model "m"`)
	d.Parts = []string{"../group"}
	_, err = s.Derive(t.Context(), parts(t, "backbone"), d, by("merge"))
	require.ErrorIs(t, err, repo.ErrNoModel)
	broken := t.TempDir()
	tree{"group/config.pbtxt": "nonsense {", "group/1/model.py": ""}.write(t, broken)
	d.Parts = []string{"group"}
	_, err = s.Derive(t.Context(), broken, d, by("merge"))
	require.ErrorIs(t, err, repo.ErrInvalidModel)
}
