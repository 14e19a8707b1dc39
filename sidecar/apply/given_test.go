// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/plan"
)

// given applies what other people's servers serve.
func given(a *apply.Applier, number uint64, r *repo.Revision, why string, partitions ...*policy.Partition) (*apply.Result, error) {
	t := apply.Target{
		Snapshot: snapshot(number, r), Plan: &policy.Plan{SnapshotRevision: number, Partitions: partitions}, Revision: r,
		Given: true, PassThrough: why, Author: "test",
	}
	var current *policy.Plan
	if serving := a.Current(); serving != nil {
		current = serving.Plan
	}
	return a.Apply(context.Background(), t, plan.Compute(current, t.Plan))
}

// What servers serve by somebody else's hand is adopted and abandoned, and
// nothing is asked of them. Where conch may place models on them, it does so
// after, and leaves them there when it goes.
func TestWhatServersServeIsAdopted(t *testing.T) {
	w, a := setUp(t)
	w.lasting, w.own = true, map[string]string{"g0": "/own/g0"}
	r := w.revision("served1", map[string]int{"a": 8, "b": 8})
	first, err := given(a, 1, r, "mode is observe", partition("p0", "g0", 100, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, []string{"stage", "start", "load", "swap"}, kinds(first), "nobody is warmed up")
	require.Equal(t, []string{"start p0", "swap"}, w.ops, "the server is asked for nothing")
	require.False(t, w.table.Models["a"].Batchable)
	require.Equal(t, "mode is observe", w.table.Models["a"].PassThroughReason)

	// Others have unloaded b.
	_, err = given(a, 2, r, "", partition("p0", "g0", 100, "a"))
	require.NoError(t, err)
	require.Equal(t, []string{"start p0", "swap", "swap"}, w.ops)
	require.True(t, w.table.Models["a"].Batchable)

	// Conch places its own, into the server's repository.
	own := w.revision("r1", map[string]int{"a": 8, "c": 8})
	_, err = to(a, 3, own, partition("p0", "g0", 100, "a", "c"))
	require.NoError(t, err)
	require.Contains(t, w.staged["/own/g0"], "c")
	require.Equal(t, []string{"a", "c"}, a.Partitions()[0].Models)

	// Given back: nothing is unloaded or unstaged, now or at the end.
	before := len(w.ops)
	_, err = given(a, 4, w.revision("served2", map[string]int{"a": 8, "c": 8}), "mode is observe", partition("p0", "g0", 100, "a", "c"))
	require.NoError(t, err)
	require.Equal(t, []string{"swap"}, w.ops[before:])
	w.table = nil
	require.NoError(t, a.Close(context.Background()))
	require.Contains(t, w.staged["/own/g0"], "c")
}
