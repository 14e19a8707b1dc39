// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
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
		{"quick", []string{"--quick", "--only", "budget"}, "with --quick the figures are not to cite"},
		{"only", []string{"--only", "budget"}, "with --only the figures are a part of it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			directory := t.TempDir()
			path := filepath.Join(directory, "reproduce.json")
			require.NoError(t, os.WriteFile(path, []byte("before"), 0o600))
			var out, progress bytes.Buffer
			root := command(&out, &progress)
			root.SetArgs(append([]string{"reproduce", "--results", directory}, c.flags...))
			require.NoError(t, root.ExecuteContext(t.Context()))
			require.Contains(t, out.String(), "figure budget.resnet50.deferred.goodput ")
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

// TestAStoppedRunKeepsTheLoadsThatEnded: what is stopped at the third load has the first two in its file; the second had failed once. A part is not kept.
func TestAStoppedRunKeepsTheLoadsThatEnded(t *testing.T) {
	for _, c := range []struct {
		only string
		kept []string
	}{{"", []string{"mix.mix0.goodput_ratio", "mix.mix1.goodput_ratio"}}, {"mix", nil}} {
		b := &bench{out: io.Discard, progress: io.Discard, results: t.TempDir(), only: c.only}
		r := &figure.Report{File: "mix", Command: "make bench BENCH=live"}
		ctx, stop := context.WithCancel(t.Context())
		var begun []string
		err := b.eachMix(ctx, mixSets[0], r, func(m mix) error {
			begun = append(begun, m.name)
			switch len(begun) {
			case 2:
				return errors.New("a server ended")
			case 4:
				stop()
				return ctx.Err()
			}
			r.Add("mix."+m.name+".goodput_ratio", 1.5, "ratio", "")
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "mix2: ")
		require.Equal(t, []string{"mix0", "mix1", "mix1", "mix2"}, begun)
		reports, err := figure.Read(b.results)
		require.NoError(t, err)
		var kept []string
		for _, report := range reports {
			for _, f := range report.Figures {
				kept = append(kept, f.Name)
			}
		}
		require.Equal(t, c.kept, kept)
	}
}

// TestMixesAreMeasuredOnceAdviceIsWritten: advice about one load lets no other be measured.
func TestMixesAreMeasuredOnceAdviceIsWritten(t *testing.T) {
	said := &figure.Report{File: "advise", Command: "make bench BENCH=live"}
	said.Add("advise.mix0.answered", 1, "bool", "")
	directory := t.TempDir()
	require.NoError(t, said.Write(directory))
	for only, want := range map[string]string{"": "has nothing about mix1: ask first", "mix0": "no tritonserver"} {
		root := command(io.Discard, io.Discard)
		root.SetArgs([]string{"mix", "--results", directory, "--tritonserver", "", "--only", only})
		require.ErrorContains(t, root.ExecuteContext(t.Context()), want)
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
