// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/rig"
	thin "github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// team is a setup without conch: two tritonservers with a
// model that Triton batches.
type team struct {
	t       *testing.T
	servers []*rig.Server
	clients []*thin.Client
	dirs    []string
	// emulation is where the servers have their emulated GPUs.
	emulation string
}

const teamsBatching = "dynamic_batching { max_queue_delay_microseconds: 700 }\n"

func newTeam(t *testing.T, flags ...string) *team {
	t.Helper()
	w := &team{t: t, emulation: "CONCH_EMULATION_DIR=" + t.TempDir()}
	for i := range 2 {
		dir := filepath.Join(t.TempDir(), "models")
		require.NoError(t, os.Rename(repository(t, "emulated"), dir))
		config := filepath.Join(dir, "emulated", "config.pbtxt")
		text, err := os.ReadFile(config)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(config, append(text, teamsBatching...), 0o644))
		s, err := rig.StartServer(t.Context(), rig.ServerOptions{
			Server: setting(t, "CONCH_TRITONSERVER"), Repository: dir, Flags: append([]string{"--load-model=emulated"}, flags...),
			Environment: []string{w.emulation, "CONCH_GPU=" + []string{"one", "two"}[i]}, // names of the team's own
		})
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = syscall.Kill(s.Pid(), syscall.SIGCONT) // it may be stopped where the test failed
			require.NoError(t, s.Close())
		})
		c, err := thin.Dial(s.GRPC)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		w.servers, w.clients, w.dirs = append(w.servers, s), append(w.clients, c), append(w.dirs, dir)
	}
	return w
}

// delays reports whether a server waits for requests to batch.
func delays(m *tritonpb.ModelConfig) bool {
	return m.GetDynamicBatching().GetMaxQueueDelayMicroseconds() > 0
}

// attach starts conch in front of the team's servers.
func (w *team) attach(mode string, change func(settings map[string]any)) *rig.Conch {
	w.t.Helper()
	var endpoints []map[string]any
	for _, s := range w.servers {
		endpoints = append(endpoints, map[string]any{"grpc": s.GRPC, "http": s.HTTP, "metrics": s.Metrics})
	}
	settings := map[string]any{
		"mode": mode, "gpus": "auto", "repository": nil,
		"driver": map[string]any{"kind": "attach", "endpoints": endpoints, "probe": map[string]any{"period": "100ms", "deadline": "10s"}},
	}
	if change != nil {
		change(settings)
	}
	return serve(w.t, rig.ConchOptions{Repository: w.dirs[0], Settings: settings})
}

func (w *team) configs(model string) []*tritonpb.ModelConfig {
	w.t.Helper()
	var all []*tritonpb.ModelConfig
	for _, c := range w.clients {
		config, err := c.ModelConfig(w.t.Context(), model, "")
		require.NoError(w.t, err)
		all = append(all, config)
	}
	return all
}

func (w *team) requireConfigs(want []*tritonpb.ModelConfig, model string) {
	w.t.Helper()
	for i, got := range w.configs(model) {
		require.True(w.t, proto.Equal(want[i], got), "server %d has %v, not %v", i, got, want[i])
	}
}

// requireUp waits until exactly these partitions are up.
func requireUp(t *testing.T, a *client.Client, ids ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var up []string
		for _, p := range partitions(t, a) {
			if p.Up {
				up = append(up, p.ID)
			}
		}
		return slices.Equal(up, ids)
	}, 2*time.Minute, 20*time.Millisecond, "%v are to be up", ids)
}

// In observe nothing of the servers' changes, and clients get every answer:
// while a server hangs, after it is back, and after others have unloaded the
// model from it. Requests are passed on one by one.
func TestAttachObserves(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	before := w.configs("emulated")
	c := w.attach("observe", func(settings map[string]any) { // a server will hang
		settings["driver"].(map[string]any)["probe"].(map[string]any)["deadline"] = "2s"
	})
	a := admin(t, c)
	requireUp(t, a, "gpu0", "gpu1")
	m, err := a.Model(t.Context(), "emulated")
	require.NoError(t, err)
	require.Contains(t, m.PassThroughReason, "mode is observe")
	_, err = a.Apply(t.Context(), api.ApplyRequest{})
	require.Equal(t, api.CodeRefused, api.CodeOf(err), "%v", err)

	hung := w.servers[1].Pid()
	r := underLoad(t, c, 20, func() {
		require.NoError(t, syscall.Kill(hung, syscall.SIGSTOP))
		requireUp(t, a, "gpu0")
		require.NoError(t, syscall.Kill(hung, syscall.SIGCONT))
		requireUp(t, a, "gpu0", "gpu1")
		require.NoError(t, w.clients[1].Unload(t.Context(), "emulated"))
		require.Eventually(t, func() bool {
			m, err := a.Model(t.Context(), "emulated")
			return err == nil && slices.Equal(m.Partitions, []string{"gpu0"})
		}, 2*time.Minute, 20*time.Millisecond)
		require.NoError(t, w.clients[1].Load(t.Context(), "emulated"))
	})
	requireAllAnswered(t, r)
	w.requireConfigs(before, "emulated")
	// One request after the other, on a partition of its own: l(1) is learnt.
	m, err = a.Model(t.Context(), "emulated")
	require.NoError(t, err)
	require.NotEmpty(t, m.Profiles)
	require.NotEmpty(t, m.Profiles[0].Points)
	// A few requests are too few to estimate what Conch would gain, and it is not estimated.
	out, code := tritonctl(t, c, "advise", "--for", "0")
	require.Zero(t, code, out)
	require.Contains(t, out, "There is too little to say what Conch would gain:\nemulated: ")
}

// Clients send single rows, one server batches them: its statistics have l(b), and
// Triton's side of the advice is Triton with that batching.
func TestAttachLearnsFromBatchesOfTheServer(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	w.servers, w.dirs = w.servers[:1], w.dirs[:1]
	c := w.attach("observe", func(settings map[string]any) { // a busy machine makes no request bad, which would refute the advice
		settings["models"] = map[string]any{"emulated": map[string]any{"slo": "10s"}}
	})
	a := admin(t, c)
	requireUp(t, a, "gpu0")
	var m api.Model
	r := underLoad(t, c, 120, func() {
		require.Eventually(t, func() bool {
			var err error
			m, err = a.Model(t.Context(), "emulated")
			return err == nil && len(m.Profiles) > 0 && m.Profiles[0].Usable && m.Profiles[0].Points[2].Observations >= 5
		}, 2*time.Minute, 100*time.Millisecond, "a profile of several batch sizes")
	})
	requireAllAnswered(t, r)
	require.True(t, m.DynamicBatching)
	require.InDelta(t, 10, m.SLOSeconds, 1e-9)
	require.InDelta(t, .0007, m.MaxQueueDelaySeconds, 1e-9)
	// The model sleeps for 20 ms and 2 ms a row; what it takes beyond that, the machine takes.
	for i := range 3 {
		p := m.Profiles[0].Points[i]
		require.Equal(t, i+1, p.Batch)
		require.GreaterOrEqual(t, p.LatencySeconds, .020+.002*float64(p.Batch))
	}
	roundTrip, _ := r.Models[0].Quantile(.5)
	require.Less(t, m.Profiles[0].Points[0].LatencySeconds, .75*roundTrip.Seconds(), "a round trip waits for the batch before it too")
	out, code := tritonctl(t, c, "advise", "--for", "0")
	require.Zero(t, code, out)
	require.Contains(t, out, "Triton's own batching holds")
	// Asked to, conch times a few batches itself, and they are what the model takes.
	measured, err := a.Measure(t.Context(), api.MeasureRequest{Models: []string{"emulated"}, Share: .5, Repeats: 3})
	require.NoError(t, err)
	require.Len(t, measured, 1)
	require.Empty(t, measured[0].Skipped)
	require.Equal(t, 1, measured[0].Batches[0].Rows)
	for _, b := range measured[0].Batches {
		require.GreaterOrEqual(t, b.Seconds, .020+.002*float64(b.Rows))
	}
	out, code = tritonctl(t, c, "advise", "--for", "0", "--measure", "--yes", "--share", ".5", "--repeats", "2")
	require.Zero(t, code, out)
	require.Contains(t, out, "Measured: emulated on ")
}

// A server that dies takes no request with it.
func TestAttachOutlivesAServer(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	c := w.attach("observe", nil)
	a := admin(t, c)
	requireUp(t, a, "gpu0", "gpu1")
	r := underLoad(t, c, 20, func() {
		kill(t, w.servers[0].Pid())
		requireUp(t, a, "gpu1")
	})
	requireAllAnswered(t, r)
}

// Control takes the delay of batching from the servers; release gives it back, under load
// and for good, and twice is once.
func TestAttachControlsAndReleases(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	before := w.configs("emulated")
	require.EqualValues(t, 700, before[0].GetDynamicBatching().GetMaxQueueDelayMicroseconds())
	c := w.attach("control", func(settings map[string]any) {
		settings["driver"].(map[string]any)["endpoints"].([]map[string]any)[0]["executions"] = 2
	})
	a := admin(t, c)
	requireUp(t, a, "gpu0", "gpu1")
	require.Equal(t, []int{2, 1}, []int{partitions(t, a)[0].Executions, partitions(t, a)[1].Executions}, "instances on CPUs say nothing")
	out, code := tritonctl(t, c, "partition", "ls")
	require.Zero(t, code, out)
	require.Contains(t, out, "100%, 2 at once")
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(w.configs("emulated"), delays)
	}, 2*time.Minute, 50*time.Millisecond)
	m, err := a.Model(t.Context(), "emulated")
	require.NoError(t, err)
	require.True(t, m.Batchable, m.PassThroughReason)

	dry, err := a.Release(t.Context(), api.ReleaseRequest{DryRun: true})
	require.NoError(t, err)
	require.Len(t, dry.Changes, 2)
	require.False(t, delays(w.configs("emulated")[0]), "a dry run changes nothing")
	require.NotNil(t, w.configs("emulated")[0].GetDynamicBatching(), "the server batches what does not come through conch")
	r := underLoad(t, c, 30, func() {
		released, err := a.Release(t.Context(), api.ReleaseRequest{Reason: "the trial is over"})
		require.NoError(t, err)
		require.Equal(t, dry.Changes, released.Changes)
		require.Equal(t, "observe", released.Mode)
		again, err := a.Release(t.Context(), api.ReleaseRequest{})
		require.NoError(t, err)
		require.Empty(t, again.Changes)
	})
	requireAllAnswered(t, r)
	w.requireConfigs(before, "emulated")

	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGTERM))
	<-c.Exited()
	require.NoError(t, c.ExitError())
	w.requireConfigs(before, "emulated")
	answer, err := w.clients[0].Stub.ModelInfer(t.Context(), tensor("emulated", 3))
	require.NoError(t, err)
	require.NotEmpty(t, answer.GetRawOutputContents())

	// What was released stays so, though conch.yaml says control.
	require.NoError(t, c.Restart(t.Context()))
	v, err := a.Version(t.Context())
	require.NoError(t, err)
	require.Equal(t, "observe", v.Mode)
	w.requireConfigs(before, "emulated")
	_, err = a.Release(t.Context(), api.ReleaseRequest{Undo: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !delays(w.configs("emulated")[0]) }, 2*time.Minute, 50*time.Millisecond)
	_, err = a.Release(t.Context(), api.ReleaseRequest{})
	require.NoError(t, err)
	w.requireConfigs(before, "emulated")
}

// With the servers' repositories conch places its own models, puts what was there
// aside, and back; what it brought stays, with batching of its own.
func TestAttachPlacesModelsAndReleasesThem(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	before := w.configs("emulated")
	own := repository(t, "emulated", "fragile")
	c := w.attach("control", func(settings map[string]any) {
		settings["repository"] = own
		endpoints := settings["driver"].(map[string]any)["endpoints"].([]map[string]any)
		for i := range endpoints {
			endpoints[i]["repository"] = w.dirs[i]
		}
	})
	a := admin(t, c)
	require.Eventually(t, func() bool {
		m, err := a.Model(t.Context(), "fragile")
		return err == nil && m.State == "ready" && len(m.Partitions) == 2
	}, 2*time.Minute, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		all := w.configs("emulated")
		return all[0].GetDynamicBatching() == nil && all[1].GetDynamicBatching() == nil
	}, 2*time.Minute, 50*time.Millisecond, "conch's own is loaded, on one server first")
	require.DirExists(t, filepath.Join(w.dirs[0]+".before", "emulated"))

	released, err := a.Release(t.Context(), api.ReleaseRequest{})
	require.NoError(t, err)
	require.Len(t, released.Changes, 4)
	for _, change := range released.Changes {
		require.Empty(t, change.Error)
	}
	w.requireConfigs(before, "emulated")
	require.NoDirExists(t, w.dirs[0]+".before")
	fragile := w.configs("fragile")
	for _, config := range fragile {
		require.Positive(t, config.GetDynamicBatching().GetMaxQueueDelayMicroseconds(), "it serves well without conch")
	}
	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGTERM))
	<-c.Exited()
	_, err = w.clients[1].Stub.ModelInfer(t.Context(), tensor("fragile", 3))
	require.NoError(t, err, "what conch brought stays loaded")
}

// A server that takes no loads is served, and conch says why it does not control
// it.
func TestAttachWithoutModelControl(t *testing.T) {
	t.Parallel()
	w := newTeam(t)
	require.NoError(t, w.servers[1].Close())
	none, err := rig.StartServer(t.Context(), rig.ServerOptions{Server: setting(t, "CONCH_TRITONSERVER"), Repository: w.dirs[1], Flags: []string{"--model-control-mode=none"},
		Environment: []string{w.emulation, "CONCH_GPU=two"}})
	require.NoError(t, err)
	w.servers[1] = none
	t.Cleanup(func() { require.NoError(t, none.Close()) })
	w.clients[1], err = thin.Dial(none.GRPC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.clients[1].Close()) })
	require.Eventually(t, func() bool {
		ok, err := w.clients[1].ModelReady(t.Context(), "emulated", "")
		return ok && err == nil
	}, 2*time.Minute, 20*time.Millisecond)

	c := w.attach("control", nil)
	a := admin(t, c)
	requireUp(t, a, "gpu0", "gpu1")
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(eventKinds(t, a, 0), func(e string) bool {
			return strings.Contains(e, none.GRPC+" is left as its server has it") && strings.Contains(e, "--model-control-mode=explicit")
		})
	}, 2*time.Minute, 50*time.Millisecond)
	m, err := a.Model(t.Context(), "emulated")
	require.NoError(t, err)
	require.Equal(t, []string{"gpu0", "gpu1"}, m.Partitions)
	require.NotNil(t, w.configs("emulated")[1].GetDynamicBatching())
}
