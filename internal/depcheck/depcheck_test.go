// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package depcheck_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/depcheck"
)

const module = "github.com/conch-serving/conch"

// imports asks the go command what every package of the module imports, tests left out.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	watch(t)
	var stderr bytes.Buffer
	list := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports", module+"/...")
	list.Stderr = &stderr
	out, err := list.Output()
	require.NoError(t, err, stderr.String())
	all := map[string][]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			require.NoError(t, err)
		}
		path := inside(p.ImportPath)
		all[path] = []string{}
		for _, i := range p.Imports {
			if i == module || strings.HasPrefix(i, module+"/") {
				all[path] = append(all[path], inside(i))
			}
		}
	}
}

// watch looks at every Go file: the go command reuses a test's result until a file changes that the test itself looked at.
func watch(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && len(d.Name()) > 2 && d.Name()[0] == '.':
			return filepath.SkipDir
		case filepath.Ext(path) == ".go":
			_, err = os.Stat(path)
		}
		return err
	})
	require.NoError(t, err)
}

func inside(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

func TestImportRules(t *testing.T) {
	all := imports(t)
	require.Greater(t, len(all), 20, "go list sees the module")
	require.Empty(t, depcheck.Check(all))
}

func TestCheckFindsViolations(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"plugins/policy", "internal/figure", false},
		{"plugins/policy/conformance", "plugins/policy", true},
		{"plugins/static", "plugins/policy", true},
		{"plugins/static", "plugins/policyother", false},
		{"plugins/static", "sidecar/plan", false},
		{"sidecar/dispatch/queue", "plugins/policy", true},
		{"sidecar/dispatch/queue", "sidecar/dispatch/batch", false},
		{"sidecar/dispatch", "sidecar/dispatch/queue", true},
		{"sidecar/dispatch", "sidecar/observe", false},
		{"sidecar/observe", "sidecar/dispatch", false},
		{"sidecar/control", "sidecar/apply/driver", true},
		{"sidecar/apply", "sidecar/control", false},
		{"sidecar/control", "sidecar/admin", false},
		{"sidecar", "sidecar/admin", true},
		{"sidecar/component", "sidecar/control", false},
		{"sidecar/component/fronts", "sidecar/control", false},
		{"sidecar/component/newcomer", "sidecar/control", false},
		{"tritonctl/cmd/model", "sidecar/admin/client", true},
		{"tritonctl/cmd/model", "sidecar/admin", false},
		{"repo", "sidecar/config", false},
		{"newcomer", "repo", false},
	} {
		got := depcheck.Check(map[string][]string{c.from: {c.to}})
		if c.ok {
			require.Empty(t, got, "%s imports %s", c.from, c.to)
		} else {
			require.Len(t, got, 1, "%s imports %s", c.from, c.to)
			require.Contains(t, got[0], c.from)
		}
	}
}
