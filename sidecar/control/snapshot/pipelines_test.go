// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/observe"
)

// nested are a detector whose boxes two classifiers take, one of them an ensemble of a crop and a network, and what was seen of 10 requests.
func nested() snapshot.Ensembles {
	steps := map[string][]snapshot.Step{
		"street": {{Model: "detect"}, {Model: "faces", After: []int{0}}, {Model: "cars", After: []int{0}}, {Model: "join", After: []int{1, 2}}},
		"faces":  {{Model: "crop"}, {Model: "who", After: []int{0}}},
		"broken": {{Model: "gone"}},
	}
	walks := map[string]observe.Walks{
		"street": {Requests: 10, Rows: 10, Took: 500 * time.Millisecond, Steps: []observe.StepWalks{
			{Ran: 10, Rows: 10, Whole: 10, Critical: 10, Queue: 20 * time.Millisecond, Execution: 100 * time.Millisecond, HandOver: 10 * time.Millisecond},
			{Ran: 10, Rows: 30, Whole: 10, Critical: 9, Taken: []int64{3000}},
			{Ran: 10, Rows: 10, Whole: 10, Critical: 1, Taken: []int64{1000}},
			{Ran: 10, Rows: 10, Whole: 10, Critical: 10, Taken: []int64{60, 20}},
		}},
		"faces": {Requests: 10, Rows: 30, Steps: []observe.StepWalks{{Ran: 10, Rows: 30, Whole: 30}, {Ran: 10, Rows: 60, Whole: 30, Taken: []int64{900}}}},
	}
	return snapshot.Ensembles{
		Steps: func(name string) []snapshot.Step { return steps[name] },
		Walks: func(name string) observe.Walks { return walks[name] },
	}
}

func world() *policy.Snapshot {
	s := &policy.Snapshot{Statistics: &policy.DispatchStatistics{}}
	for _, name := range []string{"broken", "cars", "crop", "detect", "faces", "join", "street", "who"} {
		s.Models = append(s.Models, &policy.Model{Name: name, SloUs: 100_000})
	}
	for _, m := range s.GetModels() {
		switch m.GetName() {
		case "street":
			m.Rate, m.RowRate = 20, 20
		case "cars": // has clients of its own
			m.Rate, m.RowRate = 5, 10
		}
	}
	return s
}

func TestPipelines(t *testing.T) {
	s := world()
	snapshot.AddPipelines(s, nested())
	require.NoError(t, s.Check())
	require.Len(t, s.GetPipelines(), 2, "broken calls a model that there is not")
	require.Equal(t, "faces", s.GetPipelines()[0].GetName())
	require.Zero(t, s.GetPipelines()[0].GetRate(), "only an ensemble asks for it")
	p := s.Pipeline("street")
	require.InDelta(t, 20, p.GetRate(), 1e-9)
	require.Equal(t, int64(100_000), p.GetSloUs())
	type line struct {
		model string
		after []uint32
		rows  float64
		taken []float64
	}
	var lines []line
	for _, step := range p.GetSteps() {
		lines = append(lines, line{step.GetModel(), step.GetAfter(), step.GetRows(), step.GetTakenBytes()})
	}
	require.Equal(t, []line{
		{"detect", nil, 1, nil},
		{"crop", []uint32{0}, 3, []float64{300}},
		{"who", []uint32{1}, 6, []float64{90}}, // two rows for each of three, 30 bytes for each of three
		{"cars", []uint32{0}, 1, []float64{100}},
		{"join", []uint32{2, 3}, 1, []float64{6, 2}},
	}, lines, "the ensemble among the steps is replaced by its own")
	rates := map[string][2]float64{}
	for _, m := range s.GetModels() {
		rates[m.GetName()] = [2]float64{m.GetRate(), m.GetRowRate()}
	}
	require.Equal(t, map[string][2]float64{
		"broken": {}, "faces": {}, "street": {20, 20}, "detect": {20, 20}, "crop": {20, 60}, "who": {20, 120}, "cars": {25, 30}, "join": {20, 20},
	}, rates)

	seen := s.GetStatistics().GetPipelines()
	require.Equal(t, []string{"faces", "street"}, []string{seen[0].GetPipeline(), seen[1].GetPipeline()})
	require.InDelta(t, 50_000, seen[1].GetLatencyUs(), 1e-9)
	first := seen[1].GetSteps()[0]
	require.Equal(t, []float64{2000, 10_000, 1000, 1}, []float64{first.GetQueueUs(), first.GetExecutionUs(), first.GetHandOverUs(), first.GetCriticalShare()})
	require.Equal(t, []float64{3, .9, 300}, []float64{seen[1].GetSteps()[1].GetRows(), seen[1].GetSteps()[1].GetCriticalShare(), seen[1].GetSteps()[1].GetTakenBytes()})
}

// What was seen before a step got another input says nothing about the step that it is now.
func TestWalksOfTheEnsembleBefore(t *testing.T) {
	e := nested()
	before := e.Walks("street")
	before.Steps[3].Taken = before.Steps[3].Taken[:1]
	s := world()
	snapshot.AddPipelines(s, e)
	require.NoError(t, s.Check())
	join := s.Pipeline("street").GetSteps()[4]
	require.Equal(t, []uint32{2, 3}, join.GetAfter())
	require.Empty(t, join.GetTakenBytes())
}

// Ensembles of ensembles can have more steps than there is room for: each level of these has twice those of the one before.
func TestEnsemblesOfTooManySteps(t *testing.T) {
	s := &policy.Snapshot{Models: []*policy.Model{{Name: "m", SloUs: 1000}}}
	steps := map[string][]snapshot.Step{}
	last := "m"
	for level := range 40 {
		name := fmt.Sprintf("level%d", level)
		steps[name] = []snapshot.Step{{Model: last}, {Model: last, After: []int{0}}}
		s.Models = append(s.Models, &policy.Model{Name: name, SloUs: 1000, Rate: 1})
		last = name
	}
	snapshot.AddPipelines(s, snapshot.Ensembles{
		Steps: func(name string) []snapshot.Step { return steps[name] }, Walks: func(string) observe.Walks { return observe.Walks{} },
	})
	require.Len(t, s.GetPipelines(), 12)
	require.Len(t, s.Pipeline("level11").GetSteps(), 4096)
}

// TestPoliciesSeeDividedSLOs: of models whose SLO is nobody's own.
func TestPoliciesSeeDividedSLOs(t *testing.T) {
	s := world()
	for _, name := range []string{"detect", "crop", "who", "cars", "join"} {
		us := map[string]float64{"detect": 4000, "who": 3000, "cars": 1000, "crop": 1000, "join": 2000}[name]
		s.Profiles = append(s.Profiles, &policy.Profile{Model: name, GpuType: "T4", Usable: true, Points: []*policy.ProfilePoint{
			{Batch: 1, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}}, {Batch: 16, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}},
		}})
	}
	snapshot.AddPipelines(s, nested())
	files := &repo.Revision{}
	for _, m := range s.GetModels() {
		files.Models = append(files.Models, &repo.Model{Name: m.GetName(), Config: &tritonpb.ModelConfig{}})
	}
	settings := &config.Config{Models: map[string]config.Model{"join": {SLO: config.Duration(30 * time.Millisecond)}}}
	slos := func(s *policy.Snapshot) map[string]int64 {
		all := map[string]int64{}
		for _, m := range s.GetModels() {
			all[m.GetName()] = m.GetSloUs()
		}
		return all
	}
	require.Equal(t, map[string]int64{
		"broken": 100_000, "faces": 100_000, "street": 100_000,
		"detect": 40_000, "crop": 10_000, "who": 30_000, "cars": 10_000, "join": 100_000,
	}, slos(snapshot.DivideSLOs(s, files, settings)))
	require.Equal(t, int64(100_000), slos(s)["detect"], "the request path keeps the SLO that it has")

	idle := world()
	require.Same(t, idle, snapshot.DivideSLOs(idle, files, settings))
}
