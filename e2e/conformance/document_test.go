// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/e2e/conformance"
)

var update = flag.Bool("update", false, "write testdata/compatibility.json and docs/compatibility.md")

const (
	resultsFile  = "testdata/compatibility.json"
	documentFile = "../../docs/compatibility.md"
)

func readResults(t *testing.T) *conformance.Results {
	t.Helper()
	results := &conformance.Results{Targets: map[string]map[string]conformance.Verdict{}}
	data, err := os.ReadFile(resultsFile)
	if *update && os.IsNotExist(err) {
		return results
	}
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, results))
	return results
}

// record keeps the verdicts of the targets that were run and passed.
func record(t *testing.T, ran map[string]map[string]conformance.Verdict, version string) {
	t.Helper()
	results := readResults(t)
	maps.Copy(results.Targets, ran)
	if version != "" {
		results.Triton = version
	}
	data, err := results.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(resultsFile, data, 0o644))
}

// The page says what the suite, its targets and the table of differences are now.
func TestCompatibility(t *testing.T) {
	results := readResults(t)
	const advice = "run `make compatibility`"
	require.NoError(t, results.Check(slices.Sorted(maps.Keys(targets()))), advice)
	require.Len(t, results.Targets, len(targets()), advice)
	if *update {
		require.NoError(t, os.WriteFile(documentFile, []byte(results.Document()), 0o644))
	}
	document, err := os.ReadFile(documentFile)
	require.NoError(t, err, advice)
	require.Equal(t, results.Document(), string(document), advice)
	for _, c := range conformance.Cases() {
		require.True(t, slices.ContainsFunc(conformance.Groups(), func(g conformance.Group) bool { return strings.HasPrefix(c.Name, g.Name+"/") }),
			"case %q is in no group of conformance.Groups", c.Name)
	}
}
