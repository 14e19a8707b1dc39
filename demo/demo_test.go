// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
)

// programs builds what the demo runs, as `make build` does, so that nothing is compiled twice.
func programs(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for program, dir := range map[string]string{"conch": "sidecar", "conch-policies": "plugins", "tritonctl": "tritonctl"} {
		out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(bin, program), "../"+dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return bin
}

// The whole demo with trials too short for meaningful figures: it searches, shows a table, keeps its figures and leaves a conch to try, which
// ends with it. The test does not compare the systems, because the machine may be busy.
func TestDemo(t *testing.T) {
	s, err := scenarioOf("embedded", "")
	require.NoError(t, err)
	s.contest.Warmup, s.contest.Measure = 0, 200*time.Millisecond
	s.triton = rig.Delays(0)
	results := t.TempDir()
	var out, progress bytes.Buffer
	d := &demo{scenario: s, bin: programs(t), results: results, stay: time.Millisecond, out: &out, progress: &progress}
	require.NoError(t, d.run(t.Context()), "%s", &progress)

	require.Regexp(t, `(?m)^  Triton .*max_queue_delay 0s$`, out.String())
	require.Regexp(t, `(?m)^  Conch .*late: drop$`, out.String())
	require.Regexp(t, `Conch holds [0-9.]+ times the load of Triton's best setting`, out.String())
	require.Contains(t, out.String(), "EMULATED GPUs: an execution of b rows sleeps")
	require.Contains(t, progress.String(), "4/4 Conch's highest load")
	require.Regexp(t, `(?m)^  http://127\.0\.0\.1:\d+/open\?key=\S{43}$`, out.String())
	address := regexp.MustCompile(`admin unix://(\S+)`).FindStringSubmatch(out.String())
	require.NotNil(t, address, out.String())
	require.NoFileExists(t, address[1], "conch ends with the demo")

	var kept struct {
		Command, Emulated string
		Figures           []struct {
			Name  string
			Value float64
		}
	}
	data, err := os.ReadFile(filepath.Join(results, "demo.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &kept))
	require.Equal(t, "make demo", kept.Command)
	require.Equal(t, s.emulated, kept.Emulated)
	values := map[string]float64{}
	for _, f := range kept.Figures {
		values[f.Name] = f.Value
	}
	require.Positive(t, values["demo.triton.goodput"])
	require.InEpsilon(t, values["demo.conch.goodput"]/values["demo.triton.goodput"], values["demo.goodput_ratio"], 1e-3)
}

func TestScenarios(t *testing.T) {
	_, err := scenarioOf("real", "")
	require.ErrorContains(t, err, "make triton", "who has no tritonserver is told how to get it")
	_, err = scenarioOf("other", "")
	require.ErrorContains(t, err, "--triton=other: embedded or real")

	mini, err := scenarioOf("embedded", "")
	require.NoError(t, err)
	triton, err := scenarioOf("real", "/opt/tritonserver")
	require.NoError(t, err)
	require.Equal(t, "/opt/tritonserver", triton.contest.Server)
	require.Equal(t, "demo.real", triton.figure)
	require.InDelta(t, mini.offered/triton.offered, 2.5, 1e-9, "times 5 instead of 2: loads are as much lower")
	for i, m := range triton.contest.Models.Load() {
		require.InDelta(t, 2.5, float64(m.SLO)/float64(mini.contest.Models.Load()[i].SLO), 1e-6, m.Name)
	}
	require.Equal(t, 25*time.Millisecond, triton.delays[3])
}

func TestTable(t *testing.T) {
	good := &rig.Trial{MeanBatch: 2.5, BusyShare: .75, Result: &loadgen.Result{
		Rate: 100, Measured: 2 * time.Second, Models: []loadgen.ModelResult{{Name: "a", SLO: time.Second, Sent: 200, Good: 198, Late: 2}},
	}}
	var out bytes.Buffer
	table(&out, []section{{"the same load", []line{{"Triton", rig.Standing{Setup: rig.TritonSetup{}, Trial: good}}}}})
	require.Equal(t, `the same load
           offered/s goodput/s      bad worst model  p99/SLO  mean batch  GPUs busy
  Triton         100        99    1.00%       1.00%  dropped        2.50        75%   max_queue_delay 0s
`, out.String())
}
