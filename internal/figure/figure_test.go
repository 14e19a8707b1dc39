// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/figure"
)

var update = flag.Bool("update", false, "rewrite golden files")

func report() *figure.Report {
	r := &figure.Report{
		Command: "make bench BENCH=proxy", File: "proxy", When: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Commit: "0123456789ab", Seed: 7,
		Machine:  figure.Machine{CPU: "A | CPU", Cores: 2, Memory: "8000000 kB", OS: "Debian 12", Kernel: "6.1"},
		Versions: map[string]string{"go": "1.26", "conch": "dev"},
		Emulated: "four GPUs",
	}
	r.AddRuns("proxy.grpc.1KB.c1.added_p50_us", []float64{130.25, 110, 120.5, 900}, "us", "")
	r.Add("core.24x10.requests_per_second", 1234567.8, "req/s", "one core")
	return r
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, report().Print(&out))
	require.Equal(t, "figure proxy.grpc.1KB.c1.added_p50_us 125.4 us\nfigure core.24x10.requests_per_second 1234568 req/s\n", out.String())
}

func TestWriteReadRender(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	require.NoError(t, report().Write(dir))
	reports, err := figure.Read(dir)
	require.NoError(t, err)
	require.Equal(t, []*figure.Report{report()}, reports)

	var page bytes.Buffer
	require.NoError(t, figure.Render(&page, reports))
	golden := filepath.Join("testdata", "results.md")
	if *update {
		require.NoError(t, os.WriteFile(golden, page.Bytes(), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), page.String())
}

func TestReadSaysWhichReportIsBroken(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.json"), []byte("{"), 0o644))
	_, err := figure.Read(dir)
	require.ErrorContains(t, err, "bad.json")
}

func TestValidate(t *testing.T) {
	for name, spoil := range map[string]func(*figure.Report){
		"file":      func(r *figure.Report) { r.File = "../x" },
		"name":      func(r *figure.Report) { r.Figures[0].Name = "undotted" },
		"unit":      func(r *figure.Report) { r.Figures[0].Unit = "req per s" },
		"duplicate": func(r *figure.Report) { r.Figures = append(r.Figures, r.Figures[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			r := report()
			spoil(r)
			require.Error(t, r.Write(t.TempDir()))
		})
	}
}

func TestNumberKeepsFourDigits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(1e-6, 1e12).Draw(t, "value")
		got, err := strconv.ParseFloat(figure.Number(v), 64)
		require.NoError(t, err)
		require.InEpsilon(t, v, got, 6e-4)
	})
}

func TestThisMachine(t *testing.T) {
	require.Positive(t, figure.ThisMachine().Cores)
	require.Equal(t, "unknown", figure.Commit(t.Context(), t.TempDir()))
}

// TestOfManyFiguresThoseThatPagesNameAreShown: the others are counted.
func TestOfManyFiguresThoseThatPagesNameAreShown(t *testing.T) {
	r := &figure.Report{File: "m"}
	for i := range 20 {
		r.Add(fmt.Sprintf("m.figure%d", i), float64(i), "ratio", "")
	}
	var page strings.Builder
	require.NoError(t, figure.Render(&page, []*figure.Report{r}, "as `m.figure7` says", "| `m.figure12` | 12 |", "it holds 15<!-- m.figure15 --> of them"))
	require.Contains(t, page.String(), "| `m.figure7` | 7 |")
	require.Contains(t, page.String(), "| `m.figure12` | 12 |")
	require.Contains(t, page.String(), "| `m.figure15` | 15 |")
	require.NotContains(t, page.String(), "m.figure8")
	require.Contains(t, page.String(), "results/m.json has 17 figures more.")
}
