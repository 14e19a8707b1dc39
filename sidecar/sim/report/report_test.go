// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
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
	r := small()
	r.Setup, r.Unknown, r.NoCurves, r.Command = []report.Fact{{Name: hostile, Text: hostile}}, []string{hostile}, hostile, hostile
	r.Runs[0].Curve = []report.Trial{{Seed: 1, Rate: 10, Bad: .4}}
	var out bytes.Buffer
	require.NoError(t, r.HTML(&out))
	page := out.String()
	for _, outside := range []string{"<img", "<script", "</script", "javascript:", "http://", "https://", "<link", "@import", "url(", "src="} {
		require.Zero(t, strings.Count(strings.ReplaceAll(page, "img src=x", ""), outside), outside)
	}
	require.Zero(t, strings.Count(page, `onerror="`), "a name stays within its attribute")
	var table bytes.Buffer
	require.NoError(t, small().Table(&table))
	require.NotContains(t, table.String(), "\x1b", "a name cannot steer a terminal")
}

// What stands beside an axis fits there, and the last line of the grid is above the data.
func TestAxesOfLargeAndSmallNumbers(t *testing.T) {
	for _, c := range []struct {
		busy  float64
		ticks []string
	}{
		{18_500, []string{">5k<", ">10k<", ">15k<", ">20k<"}},
		{3_000_000, []string{">1M<", ">2M<", ">3M<"}},
		{7, []string{">2<", ">4<", ">6<", ">8<"}},
		{0, []string{">0<", ">1<"}},
	} {
		h := []sim.Interval{{Busy: c.busy, GPUs: 1}, {FromSeconds: 1, Busy: c.busy, GPUs: 1}}
		var out bytes.Buffer
		require.NoError(t, report.New("axes", report.Run{Name: "one", Result: &sim.Result{History: h}}).HTML(&out))
		first, _, _ := strings.Cut(out.String()[strings.Index(out.String(), "<figcaption>GPUs that execute"):], "</svg>")
		for _, tick := range c.ticks {
			require.Contains(t, first, tick, c.busy)
		}
		require.NotContains(t, first, "e+")
	}
}

// A verdict is a sentence with its uncertainty: seeds that differ decide whether a difference is one.
func TestVerdicts(t *testing.T) {
	side := func(name string, bad ...float64) report.Side {
		s := report.Side{Name: name, Result: &sim.Result{Seed: 1, Total: sim.Totals{Rate: 1000}, Models: []sim.ModelResult{{Name: "m", Totals: sim.Totals{BadRate: bad[0]}}}}}
		for i, b := range bad[1:] {
			s.Curve = append(s.Curve, report.Trial{Seed: uint64(i + 2), Rate: 1000, Bad: b}, report.Trial{Seed: uint64(i + 2), Rate: 1200, Bad: .9})
		}
		return s
	}
	holding := func(name string, low, mid, high float64) report.Side {
		s := side(name, 0)
		s.Held = &sim.Found{Rate: mid, Low: low, High: high, All: make([]sim.Highest, 3)}
		return s
	}
	for _, c := range []struct {
		sides []report.Side
		label string
		j     report.Judgement
		text  string
	}{
		{[]report.Side{side("a", .002, .003, .001)}, "held", report.Good,
			"At 1,000 requests per second, 0.20% (0.10% to 0.30% over 3 seeds) of the worst model's requests are bad: the load is held."},
		{[]report.Side{side("a", .02, .03, .011)}, "not held", report.Bad, "the load, of which at most 1% may be bad, is not held."},
		{[]report.Side{side("a", .02, .03, .001)}, "not certain", report.Unsure, "depends on chance."},
		{[]report.Side{side("a", .002)}, "held", report.Good, "0.20% of the worst model's requests are bad: the load is held (one seed, so that the spread is not known)."},
		{[]report.Side{side("a", .002, .003), side("b", .2, .3)}, "a is better", report.Good, "0.25% (0.20% to 0.30% over 2 seeds) of the worst model's requests are bad with a and 25.00% (20.00% to 30.00% over 2 seeds) with b: a is better."},
		{[]report.Side{side("a", .2, .3), side("b", .002, .003)}, "b is better", report.Good, "b is better."},
		{[]report.Side{side("a", .002, .005), side("b", .004, .003)}, "no certain difference", report.Unsure, "with b; both hold the load (at most 1% bad), and the difference is within the spread."},
		{[]report.Side{side("a", .02), side("b", .5)}, "not certain", report.Unsure, "with one seed the spread is not known."},
		{[]report.Side{holding("a", 90, 100, 110), holding("b", 180, 200, 220)}, "b holds more", report.Good, "b holds 200 (180 to 220 over 3 seeds) requests per second with at most 1% bad for every model, and a 100 (90.0 to 110 over 3 seeds): 2.00 times as much."},
		{[]report.Side{holding("a", 90, 100, 110), holding("b", 105, 120, 130)}, "no certain difference", report.Unsure, "within the spread."},
		{[]report.Side{{Name: "a"}}, "no result", report.Unsure, "There is no result."},
	} {
		v := report.Judge(c.sides)
		require.Contains(t, v.Text, c.text)
		require.Equal(t, c.label, v.Label)
		require.Equal(t, c.j, v.Judgement)
	}
}

// GPUs are as busy as their partitions, by share and by the time for which these were in force.
func TestUtilisationOfGPUs(t *testing.T) {
	r := &sim.Result{Seconds: 10, WarmupSeconds: 1, Partitions: []sim.PartitionResult{
		{ID: "p0", GPU: "n/gpu0", ThreadPercentage: 50, UntilSeconds: 11, BusyShare: .8},
		{ID: "p1", GPU: "n/gpu0", ThreadPercentage: 50, FromSeconds: 6, UntilSeconds: 11, BusyShare: .4},
		{ID: "p2", GPU: "n/gpu1", ThreadPercentage: 100, UntilSeconds: 6, BusyShare: 1},
	}}
	var page bytes.Buffer
	require.NoError(t, (&report.Page{Sides: []report.Side{{Name: "one", Result: r}, {Name: "none", Result: &sim.Result{}}}}).HTML(&page))
	require.Regexp(t, `(?s)n/gpu0.*>50%</span></td><td>-</td>.*n/gpu1.*>50%</span></td><td>-</td>`, page.String())
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
	lanes := regexp.MustCompile(`<text x="2" y="[0-9.]+">([^<]*)</text>`).FindAllStringSubmatch(page.String(), -1)
	require.Len(t, lanes, 3)
	require.Equal(t, []string{"gpu0", "gpu0 (2)", "gpu1"}, []string{lanes[0][1], lanes[1][1], lanes[2][1]})
	heights := regexp.MustCompile(`<title>([ab]) on (gpu[01]): 0 rows.*?y="([0-9.]+)"`).FindAllStringSubmatch(page.String(), -1)
	var drawn []string
	for _, h := range heights {
		drawn = append(drawn, h[1]+" "+h[2]+" "+h[3])
	}
	require.Equal(t, []string{"a gpu0 23.0", "b gpu0 43.0", "a gpu1 63.0", "a gpu1 63.0", "b gpu0 23.0"}, drawn)
}
