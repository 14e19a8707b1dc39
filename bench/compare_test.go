// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

func tiny(only string) (*bench, *bytes.Buffer) {
	var out bytes.Buffer
	return &bench{out: &out, progress: io.Discard, start: time.Now(), seed: 1, rounds: 1, quick: true, only: only}, &out
}

func TestCompareOneLoad(t *testing.T) {
	b, out := tiny("equal2.poisson.equal.tight.gpus2")
	r := &figure.Report{File: "compare", Command: "make compare"}
	require.NoError(t, b.matrix(t.Context(), r))
	require.Len(t, r.Figures, 16, "eight disciplines, three more drop policies of two of them, and the two parts of the loads that adaptive is best on")
	require.Contains(t, out.String(), "████")
	for _, f := range r.Figures {
		require.Positive(t, f.Value, f.Name)
	}
	require.NoError(t, r.Validate())

	b, _ = tiny("equal3")
	require.ErrorContains(t, b.matrix(t.Context(), r), "equal3")
}

func TestLoadsThatAreCompared(t *testing.T) {
	b, _ := tiny("")
	columns, err := b.columns()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, c := range columns {
		require.False(t, names[c.name()], c.name())
		names[c.name()] = true
	}
	require.Contains(t, names, "a100.gamma05.zipf.tight.gpus64")
	require.Contains(t, names, "equal20.poisson.equal.loose.gpus4")
	require.NotContains(t, names, "equal1.poisson.zipf.tight.gpus4")
}

// TestNothingIsKeptForFew: of twenty models with tight SLOs on two GPUs, none of which asks for much, the tightest has no GPU to itself: that
// would cost the others more than it brings.
func TestNothingIsKeptForFew(t *testing.T) {
	columns, err := (&bench{only: "compare.gtx1080ti.poisson.zipf.tight.gpus2"}).columns()
	require.NoError(t, err)
	require.Len(t, columns, 1)
	bad := func(discipline string) float64 {
		s := columns[0].scenario(rule(discipline, "", nil))
		s.Duration, s.Warmup = duration(120), duration(2)
		r, err := s.Run(t.Context(), scenario.Options{Rate: 70, Seed: 1})
		require.NoError(t, err)
		return r.Total.BadRate
	}
	require.LessOrEqual(t, bad("adaptive"), bad("eager"))
}
