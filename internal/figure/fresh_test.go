// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// TestFiguresOfPagesAreOfThePresentCode compares what each results file was measured with to what its command runs now: docs/results.md has them all.
// Between two releases code changes before its figures are measured again: the test runs in `make test-all`, which sets CONCH_FIGURES.
func TestFiguresOfPagesAreOfThePresentCode(t *testing.T) {
	if os.Getenv("CONCH_FIGURES") == "" {
		t.Skip("CONCH_FIGURES is not set: make test-all compares figures with the code")
	}
	reports, err := figure.Read("../../results")
	require.NoError(t, err)
	history := figure.NewHistory("../..")
	require.NotEmpty(t, reports)
	for _, r := range reports {
		why, err := history.Stale(t.Context(), r)
		require.NoError(t, err)
		assert.Empty(t, why, "results/%s.json: run `%s` again, then `make results`", r.File, r.Command)
	}
}

// repository is one of a test.
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

func (r repository) write(file, text string) {
	r.t.Helper()
	path := filepath.Join(r.path, file)
	require.NoError(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(r.t, os.WriteFile(path, []byte(text), 0o644))
}

func (r repository) commit(file, text string) {
	r.t.Helper()
	r.write(file, text)
	r.git("add", "-A")
	r.git("commit", "-qm", file+" is "+text)
}

// small is a repository whose bench has two commands: live runs the rig, and conch; core runs a package's tests.
var small = map[string]string{
	"go.mod": "module example.org/m\n\nrequire (\n\texample.org/grpc v1.2.3\n\texample.org/other v1.0.0\n)\n",
	"bench/main.go": `package main
type bench struct{ seed int }
func main() { b := &bench{}; measure("live-8on4", "Live", b.live); measure("core", "Core", b.core) }
func measure(string, string, func()) {}
`,
	"bench/live.go": `package main
import "example.org/m/internal/rig"
func (b *bench) live() { rig.Start(rows{}.length()) }
type rows []int
func (r rows) length() int { return len(r) + stretch }
const stretch = 5
`,
	"bench/core.go":                      "package main\n\nfunc (b *bench) core() {}\n",
	"internal/rig/rig.go":                "package rig\n\nimport (\n\t\"example.org/grpc/status\"\n\t\"example.org/m/internal/pymodels\"\n)\n\nfunc Start(int) { status.Ok(pymodels.Emulate) }\n",
	"internal/pymodels/pymodels.go":      "package pymodels\n\n//go:embed emulate/model.py\nvar Emulate []byte\n",
	"internal/pymodels/emulate/model.py": "sleep(1)\n",
	"sidecar/main.go":                    "package main\n\nimport (\n\t_ \"example.org/m/sidecar/admin\"\n\t_ \"example.org/m/sidecar/dispatch\"\n)\n",
	"sidecar/admin/admin.go":             "package admin\n",
	"sidecar/dispatch/dispatch.go":       "package dispatch\n",
	"sidecar/dispatch/queue/q_test.go":   "package queue\n",
	"scripts/setup/triton.txt":           "tritonserver==2.51\n",
	"elsewhere/e.go":                     "package elsewhere\n",
}

// TestAReportIsStaleOnceAnythingThatItsCommandRanHasChanged: a line of the rig is enough.
func TestAReportIsStaleOnceAnythingThatItsCommandRanHasChanged(t *testing.T) {
	r := repository{t, t.TempDir()}
	r.git("init", "-q")
	for name, text := range small {
		r.write(name, text)
	}
	r.git("add", "-A")
	r.git("commit", "-qm", "all")
	for _, c := range []struct {
		name, file, text string
		live, core       bool // stale after it
	}{
		{"a line of the rig", "internal/rig/rig.go", strings.Replace(small["internal/rig/rig.go"], "Start(int) {", "Start(int) { print();", 1), true, false},
		{"a python model", "internal/pymodels/emulate/model.py", "sleep(2)\n", true, false},
		{"what the compiler reads in a comment", "internal/pymodels/pymodels.go", strings.Replace(small["internal/pymodels/pymodels.go"], "emulate/", "other/", 1), true, false},
		{"a comment", "internal/rig/rig.go", small["internal/rig/rig.go"] + "// a comment\n", false, false},
		{"a test", "internal/rig/rig_test.go", "package rig\n", false, false},
		{"a page", "internal/rig/README.md", "a page\n", false, false},
		{"the program that is started", "sidecar/dispatch/dispatch.go", "package dispatch\n\nvar a = 1\n", true, false},
		{"the admin API", "sidecar/admin/admin.go", "package admin\n\nvar a = 1\n", false, false},
		{"a constant that the function reaches", "bench/live.go", strings.Replace(small["bench/live.go"], "= 5", "= 6", 1), true, false},
		{"a page beside the benchmark that it runs", "sidecar/dispatch/queue/README.md", "a page\n", false, false},
		{"the other command", "bench/core.go", "package main\n\nfunc (b *bench) core() { print() }\n", false, true},
		{"the benchmark that it runs", "sidecar/dispatch/queue/q_test.go", "package queue\n\nvar a = 1\n", false, true},
		{"a module that is imported", "go.mod", strings.Replace(small["go.mod"], "v1.2.3", "v1.2.4", 1), true, false},
		{"a module that is not", "go.mod", strings.Replace(small["go.mod"], "v1.0.0", "v1.1.0", 1), false, false},
		{"the server that is set up", "scripts/setup/triton.txt", "tritonserver==2.52\n", true, false},
		{"something else", "elsewhere/e.go", "package elsewhere\n\nvar a = 1\n", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := repository{t, r.path}
			before := r.git("rev-parse", "HEAD")
			live, core := &figure.Report{File: "live-8on4"}, &figure.Report{File: "core"}
			live.Stamp(t.Context(), r.path)
			core.Stamp(t.Context(), r.path)
			require.NotEmpty(t, live.Code)
			require.NotEqual(t, live.Code, core.Code)
			r.commit(c.file, c.text)
			for report, stale := range map[*figure.Report]bool{live: c.live, core: c.core} {
				why, err := figure.NewHistory(r.path).Stale(t.Context(), report)
				require.NoError(t, err)
				if stale {
					require.Contains(t, why, "has changed since it was measured at commit", report.File)
				} else {
					require.Empty(t, why, report.File)
				}
			}
			r.git("reset", "-q", "--hard", strings.TrimSpace(before))
		})
	}
	_, err := figure.NewHistory(r.path).Stale(t.Context(), &figure.Report{File: "other"})
	require.ErrorContains(t, err, "no command of bench makes other.json")

	report := &figure.Report{File: "core"}
	r.commit("results/x.json", "1")
	r.write("results/x.json", "2")
	require.NotContains(t, figure.Commit(t.Context(), r.path), "dirty", "one command after the other writes its results")
	r.write("elsewhere/e.go", "package changed\n")
	report.Stamp(t.Context(), r.path)
	why, err := figure.NewHistory(r.path).Stale(t.Context(), report)
	require.NoError(t, err)
	require.Contains(t, why, "changes that no commit has")
}

// TestEveryReportIsOfACommand that the program has: of each results file it can be said what its command runs.
func TestEveryReportIsOfACommand(t *testing.T) {
	reports, err := figure.Read("../../results")
	require.NoError(t, err)
	history := figure.NewHistory("../..")
	for _, r := range reports {
		_, err := history.Code(t.Context(), "HEAD", r.File)
		require.NoError(t, err)
	}
}
