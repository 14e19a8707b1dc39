// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/command"
)

// TestFromRepositoryToAnswer is the whole of conch: a repository, a policy in
// its own process, emulated partitions, requests in both protocols, and what an
// operator sees of it.
func TestFromRepositoryToAnswer(t *testing.T) {
	t.Parallel()
	yaml := text(writeZoo(t, "alpha", "beta"), t.TempDir(), "models: {alpha: {slo: 30s}}")
	// Executions so long that requests come meanwhile on a busy machine, too.
	c := startConch(t, strings.Replace(yaml, "kind: embedded", "kind: embedded, stretch: 4", 1))
	for _, model := range []string{"alpha", "beta"} {
		for _, err := range c.burst(model, 40) {
			require.NoError(t, err)
		}
	}
	request := `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,16],"data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}`
	answered, text := c.do("http", http.MethodPost, "/v2/models/beta/infer", request)
	require.Equal(t, http.StatusOK, answered, text)
	var answer struct {
		Outputs []struct {
			Data []float32 `json:"data"`
		} `json:"outputs"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &answer))
	require.Equal(t, float32(3), answer.Outputs[0].Data[15])

	// Both protocols at once: their requests share batches, and buffers have one
	// owner each.
	var wait sync.WaitGroup
	for i := range 60 {
		wait.Go(func() {
			code, text := c.do("http", http.MethodPost, "/v2/models/beta/infer", strings.Replace(request, `"data":[1,`, fmt.Sprintf(`"data":[%d,`, i), 1))
			var got struct{ Outputs []struct{ Data []float32 } }
			if err := json.Unmarshal([]byte(text), &got); err != nil || code != http.StatusOK || got.Outputs[0].Data[0] != float32(2*i+1) {
				t.Errorf("answer to %d: %d %s %v", i, code, text, err)
			}
		})
	}
	for _, err := range c.burst("beta", 60) {
		require.NoError(t, err)
	}
	wait.Wait()

	ctx := t.Context()
	models, err := c.admin.Models(ctx)
	require.NoError(t, err)
	require.Len(t, models, 2)
	require.Equal(t, api.ModelReady, models[0].State)
	require.Equal(t, 30.0, models[0].SLOSeconds, "so long that a busy machine makes no answer late")
	require.Equal(t, 0.2, models[1].SLOSeconds, "from its config.pbtxt")
	require.Len(t, models[0].Partitions, 2)
	require.Greater(t, models[0].MeanBatch, 1.0, "forty at once are batched")
	require.True(t, models[0].Profiles[0].Usable, "the warm-up gave it a profile")
	gpus, err := c.admin.GPUs(ctx)
	require.NoError(t, err)
	require.Len(t, gpus, 2)
	require.True(t, gpus[0].Partitions[0].Up)
	p, err := c.admin.Plan(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, p.Revision)
	require.Equal(t, "static", p.Policy)
	explanation, err := c.admin.Explain(ctx, "alpha")
	require.NoError(t, err)
	require.Contains(t, explanation.Text, "gpu1")
	revisions, err := c.admin.Revisions(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"alpha", "beta"}, revisions[0].Models)

	for _, sample := range []string{
		`conch_requests_total{model="alpha",result="ok"} 40`,
		`conch_plans_total{policy="static",result="applied"} 1`,
		`conch_partition_up{partition="gpu0"} 1`,
		`conch_queue_requests{model="alpha"} 0`,
		`nv_inference_request_success{model="alpha",partition="gpu0"`,
		`conch_profile_usable{gpu_type="A100-80GB",model="alpha",source=`,
	} {
		c.requireSample(sample)
	}
	code, live := c.get("metrics", "/livez")
	require.Equal(t, http.StatusOK, code, live)
	statistics, err := c.client.Stub.ModelStatistics(ctx, &tritonpb.ModelStatisticsRequest{Name: "alpha"})
	require.NoError(t, err)
	require.EqualValues(t, 40, statistics.GetModelStats()[0].GetInferenceStats().GetSuccess().GetCount(), "statistics count client requests")
}

// TestModelControl: Triton's explicit model control, through the plan.
func TestModelControl(t *testing.T) {
	t.Parallel()
	dir := writeZoo(t, "alpha", "beta")
	c := startConch(t, text(dir, t.TempDir(), "modelControl: {clients: files}"))
	ctx := t.Context()
	_, err := c.client.Stub.RepositoryModelUnload(ctx, &tritonpb.RepositoryModelUnloadRequest{ModelName: "alpha"})
	require.NoError(t, err)
	require.Equal(t, codes.NotFound, status.Code(c.infer(ctx, "alpha", 1)))
	require.NoError(t, c.infer(ctx, "beta", 1))
	m, err := c.admin.Model(ctx, "alpha")
	require.NoError(t, err)
	require.Equal(t, api.ModelUnloaded, m.State)
	_, err = c.client.Stub.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: "alpha"})
	require.NoError(t, err)
	require.NoError(t, c.infer(ctx, "alpha", 1))

	// A model that was put there since is loaded by name.
	require.NoError(t, zoo.Write(dir, zoo.Model{Name: "gamma", MaxBatchSize: 4, Profile: zoo.Profile{Model: "gamma", Alpha: time.Millisecond, Beta: time.Millisecond, SLO: time.Second}}))
	_, err = c.client.Stub.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: "gamma"})
	require.NoError(t, err)
	require.NoError(t, c.infer(ctx, "gamma", 1))

	_, err = c.client.Stub.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: "nobody"})
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "failed to load 'nobody', failed to poll from model repository")
	config := func(text string) error {
		_, err := c.client.Stub.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: "alpha", Parameters: map[string]*tritonpb.ModelRepositoryParameter{
			"config": {ParameterChoice: &tritonpb.ModelRepositoryParameter_StringParam{StringParam: text}},
		}})
		return err
	}
	require.ErrorContains(t, config(`{"name": "beta"}`), "failed to load 'alpha', failed to poll from model repository")
	require.NoError(t, c.infer(ctx, "alpha", 1), "what served goes on serving")
	written, err := c.client.ModelConfig(ctx, "alpha", "")
	require.NoError(t, err)
	written.MaxBatchSize = 2
	text, err := protojson.Marshal(written)
	require.NoError(t, err)
	require.NoError(t, config(string(text)))
	require.EqualValues(t, 2, c.dispatcher.Routes().Models["alpha"].Config.GetMaxBatchSize())
	revisions, err := c.admin.Revisions(ctx)
	require.NoError(t, err)
	require.Equal(t, "client", revisions[0].Author)
	require.Equal(t, "load of alpha with a config", revisions[0].Reason)
	require.Equal(t, []string{"alpha"}, revisions[0].Changed)
}

// TestRestartAndReload: state outlives the process; a reload is all or nothing.
func TestRestartAndReload(t *testing.T) {
	t.Parallel()
	dir, state := writeZoo(t, "alpha"), t.TempDir()
	first := startConch(t, text(dir, state, ""))
	require.NoError(t, first.infer(t.Context(), "alpha", 1))
	second := newConch(command.Daemon{Config: parse(t, text(dir, state, "")), Version: command.Version(), Log: slog.New(slog.DiscardHandler)}, func() bool { return false })
	_, err := second.components().Open(t.Context())
	require.ErrorContains(t, err, "in use by another conch")
	first.stop()

	c := startConch(t, text(dir, state, ""))
	p, err := c.admin.Plan(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, p.Revision, "the plan of before is desired still")
	events, err := c.admin.Events(t.Context(), 0)
	require.NoError(t, err)
	require.Greater(t, len(events), 3, "those of the first run are there")

	c.next = parse(t, text(dir, state, "models: {alpha: {slo: 40ms}}"))
	c.reload.Now(t.Context())
	require.Eventually(t, func() bool {
		m, err := c.admin.Model(t.Context(), "alpha")
		return err == nil && m.SLOSeconds == .04 && c.dispatcher.Routes().Models["alpha"].SLO == 40*time.Millisecond
	}, 30*time.Second, 10*time.Millisecond)
	c.next = parse(t, text(dir, t.TempDir(), ""))
	c.reload.Now(t.Context())
	require.Contains(t, c.log.String(), "reload refused, nothing was changed: listen, state")
	require.NoError(t, c.infer(t.Context(), "alpha", 1))
}

// TestWhatCannotStartLeavesNothingOpen: an address is taken, so everything before the clients' doors is closed, and a next conch has the state.
func TestWhatCannotStartLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir, state := writeZoo(t, "alpha"), t.TempDir()
	broken := strings.Replace(text(dir, state, ""), `http: "127.0.0.1:0"`, fmt.Sprintf("http: %q", taken.Addr()), 1)
	first := newConch(command.Daemon{Config: parse(t, broken), Version: command.Version(), Log: slog.New(slog.DiscardHandler)}, func() bool { return false })
	_, err = first.components().Open(t.Context())
	require.ErrorContains(t, err, "clients: listen.http: ")
	c := startConch(t, text(dir, state, ""))
	require.NoError(t, c.infer(t.Context(), "alpha", 1))
}

// TestTheOrderOfComponents: what a component uses comes before it and so ends after it.
func TestTheOrderOfComponents(t *testing.T) {
	at := map[string]int{}
	for i, e := range newConch(command.Daemon{}, func() bool { return false }).components() {
		at[e.Name] = i
	}
	for _, c := range []struct{ first, then, why string }{
		{"state", "servers", "no other conch has the directory while servers are found in it"},
		{"requests", "clients", "what clients have asked is answered before the request path ends"},
		{"servers", "partitions", "a driver ends its servers before it is closed"},
		{"partitions", "clients", "requests are drained before the servers end"},
		{"operators", "partitions", "operators see servers end"},
		{"policies", "planning", "a policy ends when nothing asks it"},
		{"clients", "planning", "clients are heard before the first plan is applied, and nothing is planned during a drain"},
		{"planning", "reload", "nothing is reloaded into a loop that has ended"},
	} {
		require.Contains(t, at, c.first)
		require.Contains(t, at, c.then)
		require.Less(t, at[c.first], at[c.then], "%s before %s: %s", c.first, c.then, c.why)
	}
}

// TestNothingIsCalledBeforeItIsMade: a cluster changes while conch starts, too.
func TestNothingIsCalledBeforeItIsMade(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newConch(command.Daemon{Log: slog.New(slog.DiscardHandler)}, func() bool { return false })
		called := false
		c.whenRunning(func() { called = true })
		synctest.Wait()
		require.False(t, called)
		close(c.running)
		synctest.Wait()
		require.True(t, called)
	})
}

// TestDrain: what was accepted before the stop is answered, what comes after it
// is refused.
func TestDrain(t *testing.T) {
	t.Parallel()
	yaml := text(writeZoo(t, "alpha"), t.TempDir(), "models: {alpha: {slo: 10s, discipline: eager}}")
	c := startConch(t, strings.Replace(yaml, "kind: embedded", "kind: embedded, stretch: 8", 1))
	var wait sync.WaitGroup
	errs := make([]error, 30)
	for i := range errs {
		wait.Go(func() { errs[i] = c.infer(context.Background(), "alpha", float32(i)) })
	}
	require.Eventually(t, func() bool {
		_, metrics := c.get("metrics", "/metrics")
		return strings.Contains(metrics, `conch_request_rows_total{model="alpha"} 30`)
	}, 30*time.Second, time.Millisecond, "all were accepted")
	go c.stop()
	wait.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	c.stop()
}

// TestPolicySwapUnderLoad loses no request.
func TestPolicySwapUnderLoad(t *testing.T) {
	t.Parallel()
	// SLOs so long that a half of a GPU meets them on a busy machine too.
	c := startConch(t, text(writeZoo(t, "alpha", "beta"), t.TempDir(), "models: {alpha: {slo: 30s}, beta: {slo: 30s}}"))
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failures []error
	sent := 0
	for i := range 8 {
		wait.Go(func() {
			model := []string{"alpha", "beta"}[i%2]
			for ctx.Err() == nil {
				err := c.infer(context.Background(), model, float32(i))
				mu.Lock()
				sent++
				if err != nil {
					failures = append(failures, err)
				}
				mu.Unlock()
			}
		})
	}
	flows := func() {
		t.Helper()
		mu.Lock()
		before := sent
		mu.Unlock()
		require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return sent >= before+20 }, 30*time.Second, time.Millisecond)
	}
	flows()
	for _, layout := range []string{"* = 50, 50", "* = 100", "gpu0 = 50, 50"} {
		_, err := c.admin.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "static", Parameters: map[string]string{"partitions": layout}})
		require.NoError(t, err)
		_, err = c.admin.Apply(t.Context(), api.ApplyRequest{Author: "test"})
		require.NoError(t, err)
		flows()
	}
	cancel()
	wait.Wait()
	require.Empty(t, failures)
	gpus, err := c.admin.GPUs(t.Context())
	require.NoError(t, err)
	require.Len(t, gpus[0].Partitions, 2)
	require.Len(t, gpus[1].Partitions, 1)
}
