// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/handon"
)

// TestMetricsAreDocumented: the table of docs/operations.md has every metric of
// conch's own with its labels, and no other; what other pages name is in it.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	c := startConch(t, text(writeZoo(t, "a"), t.TempDir(), ""))
	known := described(t, c)

	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(conch_[a-z_]+)` \\| ([a-z_, ]*)\\|").FindAllStringSubmatch(string(page), -1) {
		documented[row[1]] = strings.TrimSpace(row[2])
	}
	require.Equal(t, known, documented)

	pages, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	for _, path := range append(pages, "../README.md") {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bconch_[a-z_]+[a-z]\b`).FindAllString(string(page), -1) {
			if _, ok := known[name]; !ok {
				require.Contains(t, []string{"conch_emulate", "conch_emulate_alpha_us", "conch_emulate_beta_us", "conch_builtin", "conch_variant", "conch_member", "conch_original_dynamic_batching"}, name, "%s names a metric that there is not", path)
			}
		}
	}
}

// described is every metric of conch's own with its labels, separated by commas.
func described(t *testing.T, c *daemon) map[string]string {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		c.registry.Describe(descriptions)
		new(handon.Front).Describe(descriptions) // in a cluster
	}()
	form := regexp.MustCompile(`^Desc\{fqName: "([a-z_]+)", .*variableLabels: \{(.*)\}\}$`)
	known := map[string]string{}
	for d := range descriptions {
		found := form.FindStringSubmatch(d.String())
		require.NotNil(t, found, d.String())
		if strings.HasPrefix(found[1], "conch_") {
			known[found[1]] = strings.ReplaceAll(found[2], ",", ", ")
		}
	}
	return known
}

// TestConfigurationsInDocsAreValid: conch accepts every conch.yaml that a page
// shows.
func TestConfigurationsInDocsAreValid(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	found := 0
	for _, path := range append(pages, "../README.md") {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, yaml := range blocks(string(page), "apiVersion: conch/v1") {
			found++
			_, err := config.Parse(path, []byte(yaml))
			require.NoError(t, err, "%s:\n%s", path, yaml)
			file := filepath.Join(t.TempDir(), "conch.yaml")
			require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
			_, err = config.Load(file, nil, command.Environment())
			require.NoError(t, err, "%s:\n%s", path, yaml)
		}
	}
	require.GreaterOrEqual(t, found, 3)
}

// blocks are the indented blocks of a page that contain a text.
func blocks(page, containing string) (all []string) {
	var block strings.Builder
	for line := range strings.Lines(page + "\nend\n") {
		if strings.HasPrefix(line, "    ") || strings.TrimSpace(line) == "" && block.Len() > 0 {
			block.WriteString(line)
			continue
		}
		if strings.Contains(block.String(), containing) {
			all = append(all, block.String())
		}
		block.Reset()
	}
	return all
}
