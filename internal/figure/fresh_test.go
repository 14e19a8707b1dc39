// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// TestFiguresOfREADMEAreOfThePresentCode compares the commit of each results file that README cites with the last commit of what it measures.
// Between two releases code changes before its figures are measured again: the test runs in `make test-all`, which sets CONCH_FIGURES.
func TestFiguresOfREADMEAreOfThePresentCode(t *testing.T) {
	if os.Getenv("CONCH_FIGURES") == "" {
		t.Skip("CONCH_FIGURES is not set: make test-all compares figures with the code")
	}
	reports, err := figure.Read("../../results")
	require.NoError(t, err)
	page, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	cited := figure.Citing(string(page), reports)
	require.NotEmpty(t, cited)
	for _, r := range cited {
		why, err := figure.Stale(t.Context(), "../..", r)
		require.NoError(t, err)
		assert.Empty(t, why, "results/%s.json: run `%s` again, then `make results`", r.File, r.Command)
	}
}

// repository is one of which a report measures sidecar/dispatch.
type repository struct {
	t    *testing.T
	path string
}

func (r repository) git(arguments ...string) string {
	r.t.Helper()
	c := exec.CommandContext(r.t.Context(), "git", append([]string{"-C", r.path, "-c", "user.name=a", "-c", "user.email=a@b"}, arguments...)...)
	out, err := c.CombinedOutput()
	require.NoError(r.t, err, string(out))
	return string(out)
}

func (r repository) commit(file, text string) {
	r.t.Helper()
	path := filepath.Join(r.path, file)
	require.NoError(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(r.t, os.WriteFile(path, []byte(text), 0o644))
	r.git("add", "-A")
	r.git("commit", "-qm", file+" is "+text)
}

func TestStale(t *testing.T) {
	r := repository{t, t.TempDir()}
	r.git("init", "-q")
	r.commit("sidecar/dispatch/a.go", "one")
	report := &figure.Report{File: "overload"}
	measure := func() {
		report.Stamp(t.Context(), r.path)
		require.NotEmpty(t, report.Code)
	}
	measure()
	why := func() string {
		text, err := figure.Stale(t.Context(), r.path, report)
		require.NoError(t, err)
		return text
	}
	require.Empty(t, why())
	r.commit("sidecar/dispatch/a_test.go", "a test")
	r.commit("sidecar/dispatch/README.md", "a page")
	r.commit("sidecar/plan/b.go", "elsewhere")
	require.Empty(t, why(), "none of these is measured")
	const before, after = "package d\n\n//go:embed a\nvar a string\n\nvar b = []int{1} // %s\n", "// %s\npackage d\n\n//go:embed b\nvar a string; var b = []int{1}\n"
	r.commit("sidecar/dispatch/d.go", fmt.Sprintf(before, "a comment"))
	measure()
	r.commit("sidecar/dispatch/d.go", fmt.Sprintf(before, "another"))
	require.Empty(t, why(), "a comment is not measured")
	r.commit("sidecar/dispatch/d.go", fmt.Sprintf(after, "a comment"))
	require.Contains(t, why(), "sidecar/dispatch/d.go is", "the compiler reads this comment")
	measure()
	r.commit("sidecar/dispatch/deep/c.go", "two")
	require.Contains(t, why(), "1 commits changed sidecar/dispatch after it was measured")
	require.Contains(t, why(), "sidecar/dispatch/deep/c.go is two")

	measure()
	require.Empty(t, why())
	require.NoError(t, os.MkdirAll(filepath.Join(r.path, "results"), 0o755))
	r.commit("results/x.json", "1")
	require.NoError(t, os.WriteFile(filepath.Join(r.path, "results/x.json"), []byte("2"), 0o644))
	require.NotContains(t, figure.Commit(t.Context(), r.path), "dirty", "one command after the other writes its results")
	require.NoError(t, os.WriteFile(filepath.Join(r.path, "sidecar/plan/b.go"), []byte("changed"), 0o644))
	report.Commit = figure.Commit(t.Context(), r.path)
	require.Contains(t, why(), "changes that no commit has")
	known := report.Code
	report.Code = "made otherwise"
	report.Commit = strings.TrimSuffix(report.Commit, "-dirty")
	require.Empty(t, why(), "the commit is there, and has the same code")
	report.Code, report.Commit = known, "0123456789ab"
	require.Empty(t, why(), "after a rebase the commit is gone, and the code is the same")
	r.commit("sidecar/dispatch/deep/c.go", "three")
	require.Contains(t, why(), "is not in the history of HEAD")
	_, err := figure.Stale(t.Context(), r.path, &figure.Report{File: "other"})
	require.ErrorContains(t, err, "nothing says what other.json measures")
}

// TestEveryReportIsKnown: for each results file something says what it measures.
func TestEveryReportIsKnown(t *testing.T) {
	reports, err := figure.Read("../../results")
	require.NoError(t, err)
	for _, r := range reports {
		_, err := figure.Stale(t.Context(), "../..", r)
		require.NoError(t, err)
	}
}
