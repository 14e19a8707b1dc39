// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The metrics are read through http.DefaultClient, which keeps its connections.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// Two models of 10 ms a request on two GPUs at 40 req/s in all: if no request waits, the GPUs are busy for 40*10 ms in two seconds of GPU time.
// On a busy machine requests come late and are batched, and the trial takes longer.
func TestMeasureTritons(t *testing.T) {
	models := rig.Copies(zoo.Profile{Model: "ten", GPUType: zoo.A100, Beta: 9 * time.Millisecond, Alpha: time.Millisecond, SLO: 30 * time.Second}, 2, 1, 4)
	require.Equal(t, []string{"ten-0", "ten-1"}, models.Names())
	tritons, err := rig.StartTritons(t.Context(), rig.TritonOptions{Models: models, GPUs: 2, Dynamic: &zoo.DynamicBatching{}})
	require.NoError(t, err)
	require.Len(t, tritons.Endpoints(), 2)
	began := time.Now()
	trial, err := rig.Measure(t.Context(), tritons, loadgen.Load{
		Models: models.Load(), Rate: 40, Arrivals: loadgen.Fixed, Measure: 2 * time.Second, Patience: time.Minute, Seed: 1,
	})
	require.NoError(t, err)
	require.Zero(t, trial.Bad())
	require.InDelta(t, 40, trial.Offered(), 1)
	require.InDelta(t, 40, trial.Goodput(), 1)
	took := time.Since(began).Seconds()
	require.GreaterOrEqual(t, trial.MeanBatch, 1.0)
	require.LessOrEqual(t, trial.MeanBatch, 4.0)
	requests := trial.Offered() * trial.Measured.Seconds()
	busy := requests*.001 + requests/trial.MeanBatch*.009
	require.GreaterOrEqual(t, trial.BusyShare, busy/2/took)
	require.LessOrEqual(t, trial.BusyShare, busy/2/((requests-1)/40), "a trial ends after the last arrival")
	require.GreaterOrEqual(t, trial.Lateness, time.Duration(0), "no sleep ends early")
	require.NoError(t, tritons.Close())
}

func TestZooSaysWhatItDoesNotHold(t *testing.T) {
	_, err := rig.Zoo(zoo.A100, 1, 8, "NoSuchNet")
	require.ErrorContains(t, err, "NoSuchNet")
	models, err := rig.Zoo(zoo.A100, 2, 8, "ResNet50")
	require.NoError(t, err)
	published, err := zoo.Lookup(zoo.A100, "ResNet50")
	require.NoError(t, err)
	require.Equal(t, []loadgen.Model{{Name: "ResNet50", SLO: 2 * published.SLO}}, models.Load())
}

func TestUsageSince(t *testing.T) {
	before := rig.Usage{"a": {Executions: 2, Rows: 4}}
	after := rig.Usage{"a": {Executions: 4, Rows: 10}, "b": {Executions: 1, Rows: 1}}
	used := after.Since(before)
	require.Equal(t, rig.Usage{"a": {Executions: 2, Rows: 6}, "b": {Executions: 1, Rows: 1}}, used)
	require.InDelta(t, 7.0/3, used.MeanBatch(), 1e-9)
	require.Zero(t, rig.Usage{}.MeanBatch())
}

// The error of starting a program that ends at once has the program's output.
func TestStartConchShowsWhyItEnded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := rig.StartConch(ctx, rig.ConchOptions{Bin: "testdata/broken", GPUs: 1})
	require.ErrorContains(t, err, "conch ended before it was ready")
	require.ErrorContains(t, err, "no such luck")
	require.True(t, strings.Contains(err.Error(), "exit status 7"), err)
}
