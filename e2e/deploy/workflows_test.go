// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The targets and scripts that workflows call are there; actionlint, which `make deploy` runs too, looks at the rest.
func TestWorkflowsCallWhatThereIs(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	require.NoError(t, err)
	called := map[string]bool{}
	for _, file := range files {
		page, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)\brun: (make|\.ci/\w+)(.*)$`).FindAllStringSubmatch(string(page), -1) {
			if m[1] != "make" {
				info, err := os.Stat(filepath.Join("../..", m[1]))
				require.NoError(t, err, "%s runs %s", file, m[1])
				require.NotZero(t, info.Mode()&0o111, m[1])
				called[m[1]] = true
				continue
			}
			for _, target := range strings.Fields(m[2]) {
				if !strings.Contains(target, "=") {
					require.Regexp(t, `(?m)^`+regexp.QuoteMeta(target)+`:`, string(makefile), "%s runs make %s", file, target)
					called[target] = true
				}
			}
		}
	}
	for _, want := range []string{".ci/run", ".ci/nightly", "e2e-gpu", "e2e-cluster", "package", "actionlint"} {
		require.Contains(t, called, want)
	}
}
