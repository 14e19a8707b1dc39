// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// with is a report of these figures.
func with(file string, values map[string]float64) *figure.Report {
	r := &figure.Report{File: file}
	for name, v := range values {
		r.Add(name, v, "req/s", "")
	}
	return r
}

// text of all remarks of a report.
func text(remarks []figure.Remark) string {
	var b strings.Builder
	for _, m := range remarks {
		b.WriteString(m.About + ": " + m.Text + "\n")
	}
	return b.String()
}

// TestRemarksOnMixes: the remarks name the system that is ahead by the figures, and the reason only where the figures show it.
func TestRemarksOnMixes(t *testing.T) {
	values := map[string]float64{}
	for _, kind := range []string{"a100", "gtx1080ti"} {
		n := "fig9." + kind + ".mixed."
		values[n+"gather.bound"], values[n+"adaptive.goodput"], values[n+"eager_prefix.goodput"] = 19000, 17100, 18000
		values[n+"adaptive_prefix.goodput"], values[n+"eager_reserve.goodput"] = 18100, 17000
		values[n+"adaptive.overall.goodput"], values[n+"eager_prefix.overall.goodput"] = 18800, 18400
	}
	words := mixes(with("reproduce", values))
	require.Contains(t, words, "On the A100 `adaptive` holds 17100 req/s, 5% below the 18000 of eager with prefix drop; the gather bound leaves nobody more than 6% above the latter.")
	require.Contains(t, words, "`adaptive` holds 18800, 2% above eager with prefix drop, 18400.")
	require.Contains(t, words, "behind by its drop policy")

	values["fig9.gtx1080ti.mixed.adaptive.goodput"] = 18360
	words = mixes(with("reproduce", values))
	require.Contains(t, words, "On the 1080 Ti `adaptive` holds 18360 req/s, 2% above the 18000")
	require.NotContains(t, words, "behind by its drop policy")

	require.Empty(t, mixes(with("reproduce", nil)))
}

// TestRemarksAroundThePeak are made of the figures of the part.
func TestRemarksAroundThePeak(t *testing.T) {
	require.Empty(t, around(with("reproduce", nil)))
	b, _ := tiny("overload")
	r := &figure.Report{File: "reproduce"}
	require.NoError(t, b.reproduce(t.Context(), r))
	words := text(around(r))
	f := figuresOf(r)
	require.Contains(t, words, "deferred has "+fixed(f["overload.resnet50.deferred.load125.bad"])+" bad and `adaptive` "+fixed(f["overload.resnet50.adaptive.load125.bad"]))
	require.Contains(t, words, "`adaptive` "+figure.Number(f["idle.resnet50.adaptive.load25.gpus_used"]))
	require.NotContains(t, words, "%!")
	require.NotContains(t, words, "NaN")
}

// TestRemarkOnTheCore: Symphony's own scheduler stands beside the queue's figure.
func TestRemarkOnTheCore(t *testing.T) {
	require.Empty(t, coreRemarks(with("core", nil)))
	words := text(coreRemarks(with("core", map[string]float64{"core.24x1000.requests_per_second": 7.12e6})))
	require.Contains(t, words, "is 7.1 million on one core, 8.0 to 9.0 times that.")
}

// TestExplainKnowsEveryReportWithRemarks as docs/results.md has them.
func TestExplainKnowsEveryReportWithRemarks(t *testing.T) {
	reports, err := figure.Read("../results")
	require.NoError(t, err)
	explain(reports)
	for _, r := range reports {
		switch r.File {
		case "reproduce", "compare", "ablation", "core", "placements", "reproduce-placement", "reproduce-abacus":
			require.NotEmpty(t, r.Remarks, r.File)
		default:
			require.Empty(t, r.Remarks, r.File)
		}
		require.NotContains(t, text(r.Remarks), "%!", r.File)
	}
}
