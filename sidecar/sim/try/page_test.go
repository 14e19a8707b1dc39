// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package try_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/sidecar/sim/try"
)

// known is the recorded snapshot with a profile: 5 ms and 1 ms a row, on two GPUs.
func known(rate float64) *policy.Snapshot {
	s := recorded(nil)
	s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: "gpu1", Type: "T4", Index: 1, MemoryBytes: 1 << 34})
	s.Models[0].Rate, s.Models[0].RowRate, s.Models[0].Burstiness = rate, rate, 1
	profile := &policy.Profile{Model: "m", GpuType: "T4", Usable: true}
	for _, b := range []uint32{1, 8} {
		us := float64(5000 + 1000*b)
		profile.Points = append(profile.Points, &policy.ProfilePoint{Batch: b, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us})
	}
	s.Profiles = []*policy.Profile{profile}
	return s
}

// A page compares the policy's plan with the one in force, at the snapshot's load and others, and says what it does not know.
func TestAPageJudgesThePlan(t *testing.T) {
	one := &policy.Plan{Partitions: []*policy.Partition{{Id: "gpu0", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 100, Instances: []*policy.Instance{{Model: "m", MaxBatch: 8}}}}}
	for _, c := range []struct {
		name            string
		rate            float64
		current         *policy.Plan
		label, question string
		judgement       report.Judgement
	}{
		{"a load that two GPUs hold and one does not", 900, one, "static is better", "better than the plan in force", report.Good},
		{"a load that one GPU holds", 50, one, "no certain difference", "better than the plan in force", report.Unsure},
		{"nothing is in force", 50, nil, "held", "No plan is in force", report.Good},
		{"more than there is", 3000, nil, "not held", "No plan is in force", report.Bad},
		{"no load", 0, one, "no load", "better than the plan in force", report.Unsure},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := known(c.rate)
			s.Current = c.current
			session, err := try.Open(t.Context(), try.Options{Policy: "static"})
			require.NoError(t, err)
			trial, err := session.Explained(t.Context(), s)
			require.NoError(t, err)
			last := 0.0
			page, err := session.Page(t.Context(), s, trial, func(done, all float64) {
				require.Greater(t, done, last)
				require.LessOrEqual(t, done, all)
				last = done
			})
			require.NoError(t, err)
			require.Equal(t, c.label, page.Verdict.Label, page.Verdict.Text)
			require.Equal(t, c.judgement, page.Verdict.Judgement)
			require.Contains(t, page.Question, c.question)
			require.NotEmpty(t, page.Unknown)
			var html bytes.Buffer
			require.NoError(t, page.HTML(&html))
			require.Contains(t, html.String(), page.Verdict.Label)
		})
	}
}

// A policy that fails, or whose plan conch refuses, has a page that says so.
func TestAPageOfNoPlan(t *testing.T) {
	session, err := try.Open(t.Context(), try.Options{Policy: "static"})
	require.NoError(t, err)
	for want, trial := range map[string]*try.Trial{
		"The policy gave no plan: out of memory":   {Policy: "static", Error: "out of memory"},
		"Conch would refuse the plan: share: 120%": {Policy: "static", Plan: &policy.Plan{}, Violations: []string{"share: 120%"}},
	} {
		page, err := session.Page(t.Context(), known(5), trial, func(float64, float64) {})
		require.NoError(t, err)
		require.Equal(t, want, page.Verdict.Text)
		require.Equal(t, report.Bad, page.Verdict.Judgement)
	}
}
