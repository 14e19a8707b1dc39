// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// What arrives at a conch under load is recorded, replayed on virtual time and judged, with the programs that a person runs.
func TestLiveTrafficIsRecordedReplayedAndJudged(t *testing.T) {
	t.Parallel()
	emulated, err := rig.Zoo("A100", 4, 16, "ResNet50")
	require.NoError(t, err)
	recordedReplayedAndJudged(t, emulated, loadgen.Emulated(16))
}

// The same of an ensemble of three models: a request of it is one, with one SLO from end to end.
func TestTrafficOfAnEnsembleIsRecordedReplayedAndJudged(t *testing.T) {
	t.Parallel()
	line := zoo.Profile{GPUType: zoo.GTX1080Ti, Alpha: 100 * time.Microsecond, Beta: 2 * time.Millisecond}
	chain := rig.Pipeline("chain", 200*time.Millisecond, 16, []zoo.Step{{Model: "prepare"}, {Model: "network", After: []int{0}}, {Model: "finish", After: []int{1}}},
		map[string]zoo.Profile{"prepare": line, "network": line, "finish": line})
	advice := recordedReplayedAndJudged(t, chain, loadgen.Tensor{Elements: 16, Scale: 8, Shift: 7}) // 2x + 1, three times
	require.NotContains(t, advice, "left out")
}

// recordedReplayedAndJudged returns what advise says.
func recordedReplayedAndJudged(t *testing.T, emulated rig.Models, row loadgen.Tensor) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := rig.StartConch(ctx, rig.ConchOptions{Bin: setting(t, "CONCH_BIN"), Models: emulated, GPUs: 2})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of conch's log:\n%s", c.LogTail())
		}
		require.NoError(t, c.Close())
	})
	trace := filepath.Join(t.TempDir(), "trace")
	recorded := make(chan string, 1)
	go func() {
		out, code := tritonctl(t, c, "record", "--for", "8s", "--file", trace, "-o", "json")
		if code != 0 {
			t.Errorf("record: %s", out)
		}
		recorded <- out
	}()
	// The header of the trace says that the recording has begun.
	require.Eventually(t, func() bool { info, err := os.Stat(trace); return err == nil && info.Size() > 0 }, 30*time.Second, 10*time.Millisecond)

	models := emulated.Load()
	caller, err := loadgen.NewGRPC(c.Endpoints(), models, row)
	require.NoError(t, err)
	defer caller.Close()
	result, err := loadgen.Run(t.Context(), loadgen.Load{Models: models, Rate: 100, Measure: 3 * time.Second, Patience: 20 * time.Second, Seed: 1}, caller, clock.System())
	require.NoError(t, err)
	failed, wrong, first := result.Faults()
	require.Zero(t, failed+wrong, "%v", first)
	sent := result.Models[0].Sent
	require.Greater(t, sent, 200)

	var summary struct{ Requests, Lost int }
	require.NoError(t, json.Unmarshal([]byte(<-recorded), &summary))
	require.Equal(t, sent, summary.Requests)
	require.Zero(t, summary.Lost)

	var report struct {
		Runs []struct {
			Name   string
			Result struct{ Total struct{ Arrivals, Good int } }
		}
	}
	page := filepath.Join(t.TempDir(), "report.html")
	out, code := tritonctl(t, c, "replay", trace, "--disciplines", "adaptive,timeout", "--html", page, "-o", "json")
	require.Zero(t, code, out)
	require.NoError(t, json.Unmarshal([]byte(out), &report), out)
	require.Len(t, report.Runs, 2)
	for _, run := range report.Runs {
		require.Equal(t, sent, run.Result.Total.Arrivals, run.Name)
	}
	require.Positive(t, report.Runs[0].Result.Total.Good)
	require.FileExists(t, page)

	out, code = tritonctl(t, c, "advise", trace, "--seeds", "2")
	require.Zero(t, code, out)
	require.Contains(t, out, "Conch would", out)
	require.Contains(t, out, "Not known: ", out)
	return out
}
