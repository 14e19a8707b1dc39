// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinksOfPages: every relative link of a page leads to a file or directory of the tree, and where it names a heading, to that heading.
func TestLinksOfPages(t *testing.T) {
	t.Parallel()
	links := 0
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	for _, page := range pagesBelow(t, "..") {
		for number, line := range prose(t, page) {
			for _, found := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(found[1], "://") {
					continue
				}
				links++
				path, anchor, named := strings.Cut(found[1], "#")
				target := page
				if path != "" {
					target = filepath.Join(filepath.Dir(page), path)
				}
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s:%d links to %s, which is not there", page, number+1, found[1])
					continue
				}
				if named && !slices.Contains(anchors(t, target), anchor) {
					t.Errorf("%s:%d links to %s: %s has no such heading", page, number+1, found[1], target)
				}
			}
		}
	}
	require.Greater(t, links, 50)
}

// TestPathsInPages: what a page names in backquotes as a path of the tree is there. The changelog is left out: it also tells of what was.
func TestPathsInPages(t *testing.T) {
	t.Parallel()
	path := regexp.MustCompile("`((?:bench|demo|deploy|docs|e2e|estimator|internal|merger|plugins|repo|scripts|sidecar|tritonctl)/[A-Za-z0-9_./-]*)`")
	for _, page := range pagesBelow(t, "..") {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		for number, line := range prose(t, page) {
			for _, found := range path.FindAllStringSubmatch(line, -1) {
				_, fromRoot := os.Stat(filepath.Join("..", found[1]))
				_, fromPage := os.Stat(filepath.Join(filepath.Dir(page), found[1]))
				if fromRoot != nil && fromPage != nil {
					t.Errorf("%s:%d names `%s`, which is not there", page, number+1, found[1])
				}
			}
		}
	}
}

// TestAnchors: headings become anchors as they do on GitHub.
func TestAnchors(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# A `code`, and more: x/y\n\n    # no heading\n\n```\n# none either\n```\n\n## Same\n\n## Same\n"
	require.NoError(t, os.WriteFile(page, []byte(text), 0o600))
	require.Equal(t, []string{"a-code-and-more-xy", "same", "same-1"}, anchors(t, page))
}

// pagesBelow are the Markdown files below a directory, those of tools, caches and builds left out.
func pagesBelow(t *testing.T, root string) (pages []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "bin" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".md" && d.Type().IsRegular() {
			pages = append(pages, path)
		}
		return nil
	}))
	return pages
}

// prose are the lines of a page; those of code blocks are empty.
func prose(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	fenced := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced || strings.HasPrefix(line, "    ") {
			lines[i] = ""
		}
	}
	return lines
}

// anchors are the names of a page's headings, as GitHub makes them: lower case, punctuation left out, dashes for spaces, and a number for
// the second of a name.
func anchors(t *testing.T, page string) (all []string) {
	t.Helper()
	seen := map[string]int{}
	heading := regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	dropped := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	for _, line := range prose(t, page) {
		found := heading.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		name := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-")
		if n := seen[name]; n > 0 {
			all = append(all, name+"-"+strconv.Itoa(n))
		} else {
			all = append(all, name)
		}
		seen[name]++
	}
	return all
}
