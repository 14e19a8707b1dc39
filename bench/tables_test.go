// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

func TestBlocksAreWrittenFromFigures(t *testing.T) {
	r := &figure.Report{}
	r.AddRuns("live.1on4.conch.goodput", []float64{470, 472, 475, 478, 480}, "req/s", "")
	r.Add("live.8on4.conch.goodput", 260, "req/s", "")
	r.Add("live.8on4.goodput_ratio", 2.384, "ratio", "")
	r.Add("live.8on4.triton.dedicated.goodput", 120, "req/s", "")
	const page = "before\n<!-- table live -->\nold\n<!-- end -->\nafter\n"
	got, err := rewriteBlocks(page, []*figure.Report{r})
	require.NoError(t, err)
	require.Equal(t, `before
<!-- table live -->
|  | one model on four GPUs (`+"`live.1on4`"+`) | eight models on four GPUs (`+"`live.8on4`"+`) |
|---|---:|---:|
| Triton, a server per GPU, dedicated, req/s | – | 120 |
| **Conch** | 475 (470 to 480) | 260 |
| Conch over the best of Triton (`+"`goodput_ratio`"+`) | – | 2.38 |
<!-- end -->
after
`, got)
	again, err := rewriteBlocks(got, []*figure.Report{r})
	require.NoError(t, err)
	require.Equal(t, got, again)
	_, err = rewriteBlocks("<!-- table other -->\n<!-- end -->", nil)
	require.ErrorContains(t, err, `no table is called "other"`)
}

// TestThePagesAreThoseOfTheResults: every number that cites a figure, every table and both pages that are written from figures are as the results files
// have them. `make results` writes them.
func TestThePagesAreThoseOfTheResults(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	pages, err := renewed("..", reports)
	require.NoError(t, err)
	for path, text := range pages {
		require.Equal(t, strings.Split(text, "\n"), strings.Split(read(t, path), "\n"), "%s: `make results` renews it", path)
	}
}

// TestFiguresThatPagesNameExist: a name in backquotes whose first part is that of some figure is a figure, or the beginning of one where it ends in .*
func TestFiguresThatPagesNameExist(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	known := byNameOf(reports)
	first := map[string]bool{}
	for name := range known {
		head, _, _ := strings.Cut(name, ".")
		first[head] = true
	}
	named := regexp.MustCompile("`([a-z0-9_]+)(\\.[a-zA-Z0-9_]+)+(\\.\\*)?`")
	paths, err := citing("..")
	require.NoError(t, err)
	for _, path := range paths {
		for _, m := range named.FindAllStringSubmatch(read(t, path), -1) {
			name := strings.Trim(m[0], "`")
			if strings.ToUpper(name) != name && !first[m[1]] || regexp.MustCompile(`\.[A-Z]+(\.|$)`).MatchString(name) || notFigures[name] {
				continue // a key, a file or a pattern such as policies_live.POLICY.bad
			}
			prefix, isPrefix := strings.CutSuffix(name, "*")
			_, exists := known[name]
			for other := range known {
				exists = exists || isPrefix && strings.HasPrefix(other, prefix) || !isPrefix && strings.HasPrefix(other, name+".")
			}
			assert.True(t, exists, "%s names %s, which is no figure of any results file", path, name)
		}
	}
}

// notFigures have names like figures.
var notFigures = map[string]bool{"merge.json": true, "demand.wait": true, "0.5": true, "reference.Horizon": true, "cluster.models": true, "cluster.networkPolicy": true}

// TestADigitOfAPage: a page in which any digit of a cited number was changed is not that of the results.
func TestADigitOfAPage(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	pages, err := renewed("..", reports)
	require.NoError(t, err)
	for path, number := range map[string]string{
		"../README.md": "| `live.8on4.to_node` | 1", "../docs/comparison.md": "| **Conch** | 4", "../docs/performance.md": "1.47<!-- proxy.triton.600KB.c64.shared_memory -->",
	} {
		text := pages[path]
		at := strings.Index(text, number)
		require.Positive(t, at, "%s has %q", path, number)
		for i, r := range number {
			if r < '0' || r > '9' || strings.Contains(number[:i], "<!--") || strings.Contains(number[:i], "`") && strings.Count(number[:i], "`")%2 == 1 {
				continue
			}
			wrong := text[:at+i] + string('0'+(r-'0'+1)%10) + text[at+i+1:]
			require.NotEqual(t, text, wrong)
			again, err := figure.Cite(wrong, reports)
			require.NoError(t, err)
			again, err = rewriteBlocks(again, reports)
			require.NoError(t, err)
			require.Equal(t, text, again, "what is wrong is found")
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
