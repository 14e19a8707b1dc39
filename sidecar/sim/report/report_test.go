// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/report"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const hostile = `</script><img src=x onerror="alert(1)">'` + "\x1b[31m"

func small() *report.Report {
	result := func(good uint64) *sim.Result {
		totals := sim.Totals{Arrivals: 10, Good: good, Late: 10 - good, Rate: 10, Goodput: float64(good), BadRate: 1 - float64(good)/10}
		return &sim.Result{
			Version: 1, Seed: 1, Seconds: 1, EndSeconds: 1, Total: totals,
			Models:     []sim.ModelResult{{Name: hostile, SLOUs: 25000, Totals: totals, Latency: sim.Latency{P50Us: 9000, P95Us: 20000, P99Us: 30000, P99OfSLO: 1.2}, Batches: []uint64{0, 2, 1}, MeanBatch: 4. / 3}},
			Partitions: []sim.PartitionResult{{ID: "gpu0", GPU: "sim/gpu0", ThreadPercentage: 100, UntilSeconds: 1, BusyShare: .5, Batches: 3, Rows: 4}},
			History:    []sim.Interval{{Arrivals: 5, Good: good, GPUs: 1, Busy: .25}, {FromSeconds: .5, Arrivals: 5, Bad: 10 - good, GPUs: 1, Busy: .75}},
			Timeline:   []sim.BatchRecord{{Rows: 1, Requests: 1, Start: 100, End: 900}, {Rows: 2, Requests: 2, Start: 1000, End: 2500, Late: true}},
		}
	}
	r := report.New("two runs of "+hostile, report.Run{Name: "timeout", Result: result(6)}, report.Run{Name: "adaptive " + hostile, Result: result(9), Goodput: &sim.Found{Rate: 12, Low: 11, High: 13}})
	r.Notes = []string{"short & sweet"}
	return r
}

func TestReportsAreTheSameBytesAgain(t *testing.T) {
	for name, write := range map[string]func(*report.Report, *bytes.Buffer) error{
		"small.golden.html": func(r *report.Report, b *bytes.Buffer) error { return r.HTML(b) },
		"small.golden.json": func(r *report.Report, b *bytes.Buffer) error { return r.JSON(b) },
		"small.golden.txt":  func(r *report.Report, b *bytes.Buffer) error { return r.Table(b) },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, write(small(), &out))
			path := filepath.Join("testdata", name)
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(path, out.Bytes(), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), out.String())
		})
	}
}

func TestAPageLoadsNothingAndNamesCannotBecomeMarkup(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, small().HTML(&out))
	page := out.String()
	require.Zero(t, strings.Count(page, "<img"))
	require.Equal(t, 1, strings.Count(page, "</script>"))
	for _, outside := range []string{"http://", "https://", "<link", "@import", "url("} {
		require.Zero(t, strings.Count(page, outside), outside)
	}
	var table bytes.Buffer
	require.NoError(t, small().Table(&table))
	require.NotContains(t, table.String(), "\x1b", "a name cannot steer a terminal")
}

// What stands beside an axis fits there, and the last line of the grid is above the data.
func TestAxesOfLargeAndSmallNumbers(t *testing.T) {
	for _, c := range []struct {
		good  uint64
		ticks []string
	}{
		{18_500, []string{">5000<", ">10k<", ">15k<", ">20k<"}},
		{3_000_000, []string{">1M<", ">2M<", ">3M<"}},
		{7, []string{">2<", ">4<", ">6<", ">8<"}},
		{0, []string{">0<", ">1<"}},
	} {
		h := []sim.Interval{{Arrivals: c.good, Good: c.good, GPUs: 1}, {FromSeconds: 1, Arrivals: c.good, Good: c.good, GPUs: 1}}
		var out bytes.Buffer
		require.NoError(t, report.New("axes", report.Run{Name: "one", Result: &sim.Result{History: h}}).HTML(&out))
		first, _, _ := strings.Cut(out.String()[strings.Index(out.String(), "<figcaption>Good requests"):], "</svg>")
		for _, tick := range c.ticks {
			require.Contains(t, first, tick, c.good)
		}
		require.NotContains(t, first, "e+")
	}
}

// Latencies of a minute are no powers of ten.
func TestLongLatenciesAreInSeconds(t *testing.T) {
	r := report.New("long", report.Run{Name: "one", Result: &sim.Result{Models: []sim.ModelResult{{Name: "m", Latency: sim.Latency{P50Us: 15070, P99Us: 3.409e7}}}}})
	var out bytes.Buffer
	require.NoError(t, r.Table(&out))
	require.Contains(t, out.String(), "15.07ms")
	require.Contains(t, out.String(), "34.1s")
}

// Batches that run in a partition at the same time are drawn in rows of their own; those that follow each other share one.
func TestBatchesBesideEachOtherAreDrawnApart(t *testing.T) {
	r := &report.Report{Runs: []report.Run{{Name: "segment", Result: &sim.Result{
		Models:     []sim.ModelResult{{Name: "a"}, {Name: "b"}},
		Partitions: []sim.PartitionResult{{ID: "gpu0"}, {ID: "gpu1"}},
		Timeline: []sim.BatchRecord{
			{Start: 0, End: 9e3}, {Model: 1, Start: 0, End: 9e3}, {Model: 1, Start: 9e3, End: 12e3}, {Partition: 1, Start: 1e3, End: 2e3}, {Partition: 1, Start: 2e3, End: 3e3},
		},
	}}}}
	var page bytes.Buffer
	require.NoError(t, r.HTML(&page))
	require.Contains(t, page.String(), `"Partitions":["gpu0","gpu0, beside (2)","gpu1"]`)
	require.Contains(t, page.String(), `"Batches":[[0,0,0,0,9,0],[1,1,0,0,9,0],[0,1,0,9,12,0],[2,0,0,1,2,0],[2,0,0,2,3,0]]`)
}
