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
)

func tiny(only string) (*bench, *bytes.Buffer) {
	var out bytes.Buffer
	return &bench{out: &out, progress: io.Discard, start: time.Now(), seed: 1, rounds: 1, quick: true, only: only}, &out
}

func TestCompareOneLoad(t *testing.T) {
	b, out := tiny("equal2.poisson.equal.tight.gpus2")
	r := &figure.Report{File: "compare", Command: "make compare"}
	require.NoError(t, b.matrix(t.Context(), r))
	require.Len(t, r.Figures, 10, "eight disciplines, and the two parts of the loads that adaptive is best on")
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
