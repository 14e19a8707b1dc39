// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/internal/figure"
)

// resultsPage is written from results/*.json alone; queuePage is one beside README.md and docs in which figures are renewed.
const resultsPage, queuePage = "docs/results.md", "sidecar/dispatch/queue/README.md"

// keysPage cites no figures, and has tables of keys that look like their names.
const keysPage = "docs/configuration.md"

func (b *bench) resultsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "results", Short: "Writes docs/results.md, and renews the figures in README.md, docs and the queue's page, from results/*.json", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			reports, err := figure.Read(b.results)
			if err != nil {
				return err
			}
			if err := drawPlacements(b.results, reports); err != nil {
				return err
			}
			pages, err := renewed(".", reports)
			if err != nil {
				return err
			}
			for path, text := range pages {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // for everybody to read
					return fmt.Errorf("results: %w", err)
				}
			}
			return nil
		},
	}
}

// citing lists the pages in which figures are renewed, below a directory.
func citing(root string) ([]string, error) {
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	docs = slices.DeleteFunc(docs, func(path string) bool {
		return path == filepath.Join(root, resultsPage) || path == filepath.Join(root, keysPage)
	})
	return append(docs, filepath.Join(root, "README.md"), filepath.Join(root, queuePage)), nil
}

// renewed are the pages below a directory as the reports have them, by path: those that cite figures, and those that are written from figures.
func renewed(root string, reports []*figure.Report) (map[string]string, error) {
	paths, err := citing(root)
	if err != nil {
		return nil, err
	}
	pages := map[string]string{}
	var texts []string
	for _, path := range paths {
		old, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("results: %w", err)
		}
		text, err := figure.Cite(string(old), reports)
		if err == nil {
			text, err = rewriteBlocks(text, reports)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		pages[path] = text
		texts = append(texts, text)
	}
	var results bytes.Buffer
	if err := figure.Render(&results, reports, texts...); err != nil {
		return nil, err
	}
	pages[filepath.Join(root, resultsPage)] = results.String()
	return pages, nil
}
