// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package depcheck_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sharing finds what a file has to do with goroutines: it starts one, or imports what is used between them.
func sharing(t *testing.T, name string, source any) (found []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, 0)
	require.NoError(t, err)
	for _, i := range file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		if path == "sync" || strings.HasPrefix(path, "sync/") || strings.HasPrefix(path, "golang.org/x/sync/") {
			found = append(found, set.Position(i.Pos()).String()+": imports "+path)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if g, ok := n.(*ast.GoStmt); ok {
			found = append(found, set.Position(g.Pos()).String()+": starts a goroutine")
		}
		return true
	})
	return found
}

// What `make test` runs without the race detector starts no goroutine and synchronises with none.
func TestPackagesWithoutTheRaceDetectorHaveOneGoroutine(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	list := regexp.MustCompile(`(?m)^ONE_GOROUTINE \?= ((?:.*\\\n)*.*)$`).FindSubmatch(makefile)
	require.NotNil(t, list, "the Makefile says which packages these are")
	packages := strings.Fields(strings.ReplaceAll(string(list[1]), "\\\n", " "))
	require.NotEmpty(t, packages)
	for _, p := range packages {
		files, err := filepath.Glob(filepath.Join("../..", p, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, "ONE_GOROUTINE names %s, which is no package", p)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				require.Empty(t, sharing(t, file, nil), "take %s off ONE_GOROUTINE in the Makefile", p)
			}
		}
	}
}

func TestSharingIsFound(t *testing.T) {
	for source, want := range map[string][]string{
		"package p\nfunc f() { f() }":                        nil,
		"package p\nfunc f() { go f() }":                     {"x.go:2:12: starts a goroutine"},
		"package p\nimport \"sync\"\nvar m sync.Mutex":       {"x.go:2:8: imports sync"},
		"package p\nimport _ \"sync/atomic\"":                {"x.go:2:8: imports sync/atomic"},
		"package p\nimport _ \"golang.org/x/sync/errgroup\"": {"x.go:2:8: imports golang.org/x/sync/errgroup"},
	} {
		require.Equal(t, want, sharing(t, "x.go", source))
	}
}

// Virtual time is internal/bubble's: synctest.Test alone crashes under the race detector where two timers are due at once.
func TestVirtualTimeIsOfABubble(t *testing.T) {
	call := regexp.MustCompile(`\bsynctest\.Test\(`)
	require.NoError(t, filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".cache" || d.Name() == ".git" || path == "../../internal/bubble"):
			return filepath.SkipDir
		case strings.HasSuffix(path, "_test.go") && path != "../../internal/depcheck/goroutines_test.go":
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NotRegexp(t, call, string(text), "%s: bubble.Test of internal/bubble runs a test in virtual time", path)
		}
		return nil
	}))
}
