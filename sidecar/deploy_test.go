// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDashboardAndRulesNameMetricsThatThereAre: a renamed metric does not leave
// a panel empty or an alert silent. `make deploy` asks the queries of a
// Prometheus.
func TestDashboardAndRulesNameMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	known := described(t, startConch(t, text(writeZoo(t, "a"), t.TempDir(), "")))
	for _, file := range []string{"../deploy/grafana/conch.json", "../deploy/prometheus/conch.rules.yml", "../deploy/prometheus/conch.test.yml"} {
		page, err := os.ReadFile(file)
		require.NoError(t, err)
		names := regexp.MustCompile(`\bconch_[a-z_]+[a-z]\b`).FindAllString(string(page), -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			family := name
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				family = strings.TrimSuffix(family, part)
			}
			require.Contains(t, known, family, "%s names %s, which is no metric of conch", file, name)
		}
	}
}

// TestRulesAreTested: conch.test.yml has a test of every rule, and of no other.
func TestRulesAreTested(t *testing.T) {
	rules, err := os.ReadFile("../deploy/prometheus/conch.rules.yml")
	require.NoError(t, err)
	tests, err := os.ReadFile("../deploy/prometheus/conch.test.yml")
	require.NoError(t, err)
	alerts := func(pattern string, page []byte) map[string]bool {
		names := map[string]bool{}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(page, -1) {
			names[string(m[1])] = true
		}
		return names
	}
	require.Equal(t, alerts(`- alert: (\w+)`, rules), alerts(`alertname: (\w+)`, tests))
	require.Equal(t, alerts(`- record: ([\w:]+)`, rules), alerts(`expr: '(?:round\()?(conch:[\w:]+)`, tests))
}
