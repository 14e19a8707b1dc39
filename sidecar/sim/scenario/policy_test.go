// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// policies is bin/conch-policies, built where `make test` has not.
func policies(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("CONCH_BIN"); bin != "" {
		return filepath.Join(bin, "conch-policies")
	}
	program := filepath.Join(t.TempDir(), "conch-policies")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "github.com/conch-serving/conch/plugins").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// TestAProcessGivesTheSameResult: a policy in this process and conch-policies as Conch starts it, asked several times, byte for byte.
func TestAProcessGivesTheSameResult(t *testing.T) {
	s := load(t, "bursts.yaml")
	inside, err := s.Policy.InProcess(t.Context())
	require.NoError(t, err)
	want := run(t, s, scenario.Options{Policy: inside})
	require.Greater(t, want.Plans, 2)

	// The budget is real time, and this machine may be busy.
	host, err := s.Policy.InProcesses(t.Context(), policyhost.Options{Builtins: policies(t), Grace: time.Minute}, nil)
	require.NoError(t, err)
	got := run(t, s, scenario.Options{Policy: host})
	require.NoError(t, host.Close())
	require.Equal(t, encode(t, want), encode(t, got))

	// The same by the scenario file: a process of Conch's, and a third-party executable beside the scenario.
	dir, program := t.TempDir(), policies(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "theirs"), []byte("#!/bin/sh\nexec '"+program+"' static\n"), 0o700)) //nolint:gosec // it has to run
	for name, change := range map[string]func(*scenario.Policy){
		"process":    func(p *scenario.Policy) { p.Process = true },
		"executable": func(p *scenario.Policy) { p.Name, p.Executable = "mine", "theirs" },
	} {
		p := *s.Policy
		change(&p)
		opened, closed, err := p.Open(t.Context(), dir, filepath.Join(filepath.Dir(program), "tritonctl"))
		require.NoError(t, err, name)
		got := run(t, s, scenario.Options{Policy: opened})
		require.NoError(t, closed(), name)
		require.Equal(t, encode(t, want), encode(t, got), name)
	}

	_, err = (&scenario.Policy{Name: "oracle"}).InProcesses(t.Context(), policyhost.Options{Builtins: policies(t)}, nil)
	require.ErrorIs(t, err, scenario.ErrScenario)
}

// TestReplayOfALiveSystem: a snapshot and a recorded trace become a scenario that runs under the plan that served.
func TestReplayOfALiveSystem(t *testing.T) {
	w, err := load(t, eightOnFour).World(scenario.Options{})
	require.NoError(t, err)
	live := proto.CloneOf(w.Snapshot)
	live.Revision, live.Current = 42, w.Plan
	live.Models = live.Models[:3]
	for _, p := range live.Current.Partitions {
		p.Instances = p.Instances[:3]
	}
	live.Current.Dispatch = nil
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(live)
	require.NoError(t, err)

	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "live.trace"))
	require.NoError(t, err)
	recorded, err := workload.NewWriter(file, workload.Header{Start: time.Unix(1e9, 0)})
	require.NoError(t, err)
	for i := range 3 {
		n, err := recorded.Model(workload.TraceModel{Name: live.Models[2-i].Name})
		require.NoError(t, err)
		for k := range 10 * (i + 1) {
			require.NoError(t, recorded.Write(workload.Arrival{At: time.Duration(k) * 10 * time.Millisecond, Model: n, Rows: 1}))
		}
	}
	require.NoError(t, recorded.Flush())
	require.NoError(t, file.Close())

	s, err := scenario.FromSnapshot(text, &scenario.Trace{File: "live.trace", Format: "conch"})
	require.NoError(t, err)
	text, err = s.Marshal()
	require.NoError(t, err)
	s, err = scenario.Parse("replay.json", text)
	require.NoError(t, err)
	require.Equal(t, "snapshot 42", s.Name)
	world, err := s.World(scenario.Options{Dir: dir})
	require.NoError(t, err)
	require.True(t, proto.Equal(live.Current, world.Plan))
	require.NoError(t, world.Close())

	s.Models = []scenario.Model{{Name: live.Models[0].Name, SLO: scenario.Duration(time.Second), Late: "serve"}} // what if?
	world, err = s.World(scenario.Options{Dir: dir})
	require.NoError(t, err)
	defer func() { require.NoError(t, world.Close()) }()
	require.EqualValues(t, 1e6, world.Snapshot.GetModels()[0].GetSloUs())
	require.Equal(t, policy.LatePolicy_LATE_POLICY_DROP, world.Snapshot.GetModels()[1].GetLate())
	var counts [3]int
	for a := (workload.Arrival{}); world.Streams[0].Next(&a); {
		counts[a.Model]++
	}
	require.Equal(t, [3]int{30, 20, 10}, counts)

	_, err = scenario.FromSnapshot([]byte(`{"revision": "x"}`), nil)
	require.ErrorIs(t, err, scenario.ErrScenario)
}

// TestReplayOfAnEnsemble: a request of an ensemble whose steps Conch executed is one arrival, of the ensemble, recorded or generated.
func TestReplayOfAnEnsemble(t *testing.T) {
	w, err := load(t, eightOnFour).World(scenario.Options{})
	require.NoError(t, err)
	live := proto.CloneOf(w.Snapshot)
	live.Current, live.Models = w.Plan, live.Models[:2]
	first, second := live.Models[0], live.Models[1]
	first.Rate, first.RowRate, second.Rate, second.RowRate = 10, 10, 0, 0
	live.Models = append(live.Models, &policy.Model{Name: "whole", SloUs: 500_000, Rate: 20, RowRate: 20, DependsOn: []string{first.Name, second.Name}})
	live.Pipelines = []*policy.Pipeline{{Name: "whole", SloUs: 500_000, Rate: 20, Steps: []*policy.PipelineStep{{Model: first.Name}, {Model: second.Name, After: []uint32{0}}}}}
	live.Pipelines[0].Load(map[string]*policy.Model{first.Name: first, second.Name: second})
	for _, p := range live.Current.Partitions {
		p.Instances = append(p.Instances[:2], policy.ModelInstance("whole", 1))
	}
	live.Current.Dispatch = nil
	text, err := protojson.Marshal(live)
	require.NoError(t, err)

	s, err := scenario.FromSnapshot(text, nil)
	require.NoError(t, err)
	r, err := s.Run(t.Context(), scenario.Options{})
	require.NoError(t, err)
	require.InEpsilon(t, 10, r.Models[0].Rate, .2)
	require.Zero(t, r.Models[1].Arrivals)
	require.Len(t, r.Models, 2)
	require.InEpsilon(t, 20, r.Pipelines[0].Rate, .2)
	require.Equal(t, r.Pipelines[0].Arrivals, r.Pipelines[0].Good)
	world, err := s.World(scenario.Options{})
	require.NoError(t, err)
	require.True(t, proto.Equal(live.Models[1], world.Snapshot.GetModels()[1]), "rates have what the ensemble asks, once")
	require.NoError(t, world.Close())

	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "live.trace"))
	require.NoError(t, err)
	recorded, err := workload.NewWriter(file, workload.Header{Start: time.Unix(1e9, 0)})
	require.NoError(t, err)
	n, err := recorded.Model(workload.TraceModel{Name: "whole"})
	require.NoError(t, err)
	for k := range 25 {
		require.NoError(t, recorded.Write(workload.Arrival{At: time.Duration(k) * 10 * time.Millisecond, Model: n, Rows: 1}))
	}
	require.NoError(t, recorded.Flush())
	require.NoError(t, file.Close())
	s, err = scenario.FromSnapshot(text, &scenario.Trace{File: "live.trace", Format: "conch"})
	require.NoError(t, err)
	r, err = s.Run(t.Context(), scenario.Options{Dir: dir})
	require.NoError(t, err)
	require.EqualValues(t, 25, r.Pipelines[0].Arrivals)
	require.EqualValues(t, 25, r.Total.Arrivals)
}
