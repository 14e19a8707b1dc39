// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package ensemble_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
)

// TestPassageOfADiamond: the critical path goes through the branch that the last step waited for, and its parts are the whole.
func TestPassageOfADiamond(t *testing.T) {
	models := map[string]ensemble.Model{}
	for _, name := range []string{"split", "left", "right"} {
		models[name] = ensemble.Model{Config: parse(t, flat(name, "")), Versions: []string{"1"}}
	}
	models["join"] = ensemble.Model{Config: parse(t, `name: "join" max_batch_size: 8 input [ { name: "L" dims: -1 }, { name: "R" dims: -1 } ] output { name: "OUT" dims: -1 }`), Versions: []string{"1"}}
	// The join stands first: configurations are in any order.
	g, reason := ensemble.Split(parse(t, whole+of(
		`step { model_name: "join" model_version: -1 input_map { key: "L" value: "l" } input_map { key: "R" value: "r" } output_map { key: "OUT" value: "Y" } } `,
		step("split", "X", "s"), step("left", "s", "l"), step("right", "s", "r"))), func(name string) (ensemble.Model, bool) { m, ok := models[name]; return m, ok })
	require.Empty(t, reason)
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	const join, split, left, right = 0, 1, 2, 3
	p := g.Measure(began)
	p.Pass(split, at(1), at(3), at(7), at(8)) // queued at 1, executes from 3 to 7, its results are there at 8
	p.Take(left, "s", 100)
	p.Take(right, "s", 100)
	p.Pass(right, at(8), at(8), at(10), at(10))
	p.Pass(left, at(9), at(14), at(19), at(20))
	p.Take(join, "l", 40)
	p.Take(join, "r", 60)
	p.Pass(join, at(20), time.Time{}, time.Time{}, at(22)) // its execution is not known
	steps := p.End()

	ms := time.Millisecond
	want := []ensemble.Passed{
		{Ran: true, Queue: 2 * ms, Execution: 4 * ms, HandOver: 2 * ms, Critical: true, Taken: []int64{}},
		{Ran: true, Queue: 5 * ms, Execution: 5 * ms, HandOver: 2 * ms, Critical: true, Taken: []int64{100}},
		{Ran: true, Queue: 0, Execution: 2 * ms, HandOver: 0, Taken: []int64{100}},
		{Ran: true, Queue: 2 * ms, Critical: true, Taken: []int64{40, 60}},
	}
	require.Len(t, steps, len(want))
	sum := time.Duration(0)
	for i, got := range steps {
		require.Equal(t, want[i], ensemble.Passed{Ran: got.Ran, Queue: got.Queue, Execution: got.Execution, HandOver: got.HandOver, Critical: got.Critical, Taken: got.Taken}, i)
		if got.Critical {
			sum += got.Queue + got.Execution + got.HandOver
		}
	}
	require.Equal(t, 22*ms, sum)
	require.Equal(t, []int{split, left, right, join}, g.Order())
}
