// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// TestResultsFileIsNotOverwrittenByAPart: what --quick or --only measured is printed, and the results file stays as it is.
func TestResultsFileIsNotOverwrittenByAPart(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		says  string
	}{
		{"quick", []string{"--quick", "--only", "example"}, "with --quick the figures are not to cite"},
		{"only", []string{"--only", "example"}, "with --only the figures are a part of it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			directory := t.TempDir()
			path := filepath.Join(directory, "reproduce.json")
			require.NoError(t, os.WriteFile(path, []byte("before"), 0o600))
			var out, progress bytes.Buffer
			root := command(&out, &progress)
			root.SetArgs(append([]string{"reproduce", "--results", directory}, c.flags...))
			require.NoError(t, root.ExecuteContext(t.Context()))
			require.Contains(t, out.String(), "figure example.fig4.deferred.first_start 2.25 units\n")
			require.Contains(t, progress.String(), path+" is not written: "+c.says)
			kept, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, "before", string(kept))
		})
	}
}

func TestResultsFileIsWritten(t *testing.T) {
	b := &bench{out: io.Discard, progress: io.Discard, results: t.TempDir()}
	r := &figure.Report{File: "core", Command: "make bench BENCH=core"}
	r.Add("core.24x10.requests_per_second", 1, "req/s", "")
	require.NoError(t, b.publish(r))
	reports, err := figure.Read(b.results)
	require.NoError(t, err)
	require.Equal(t, r.Figures, reports[0].Figures)
	for _, other := range []*bench{{quick: true}, {only: "x"}} {
		other.out, other.progress = io.Discard, io.Discard
		require.Error(t, other.publish(&figure.Report{File: "../x"}), "a report that could not be written is wrong all the same")
	}
}

// figures of a report by name.
type figures map[string]float64

func figuresOf(r *figure.Report) figures {
	all := figures{}
	if r != nil {
		for _, f := range r.Figures {
			all[f.Name] = f.Value
		}
	}
	return all
}

// have reports whether all of these were measured: a text about them is left out otherwise.
func (f figures) have(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { _, ok := f[name]; return !ok })
}
