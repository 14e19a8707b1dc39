// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"

	"github.com/stretchr/testify/require"
)

// together sends requests of the given rows while an execution of the first is under way, in this order, and waits for all answers.
func (e *Env) together(model string, rows ...int64) {
	e.Helper()
	ctx, gate := e.ctx(), e.close(model)
	answers := make([]<-chan error, len(rows))
	for i, n := range rows {
		answers[i] = later(func() error {
			_, err := e.Client.Stub.ModelInfer(ctx, request(model, input("INPUT0", "FP32", shape(n, 1), make([]byte, 4*n))))
			return err
		})
		if i == 0 {
			gate.executes(1)
		}
		gate.holds(i+1, none)
	}
	gate.open()
	for _, answer := range answers {
		require.NoError(e, <-answer)
	}
}

// batchingCases see what runs together by the statistics.
func batchingCases() []Case {
	return []Case{
		{"batching/without dynamic_batching every request runs alone", func(e *Env) {
			before := e.quiet("slow")
			e.together("slow", 1, 1, 1)
			e.ran(before, 3)
			after := e.settled(before, 3)
			require.Equal(e, before.ExecutionCount+3, after.ExecutionCount)
			require.Equal(e, batchCount(before, 1)+3, batchCount(after, 1))
		}},
		{"batching/what queues during an execution runs together", func(e *Env) {
			before := e.quiet("batched")
			e.together("batched", 1, 1, 1, 1, 1, 1, 1, 1)
			e.executed(before, 2)
			after := e.settled(before, 8)
			require.Equal(e, before.ExecutionCount+2, after.ExecutionCount)
			require.Equal(e, before.InferenceCount+8, after.InferenceCount)
			require.Equal(e, batchCount(before, 1)+1, batchCount(after, 1), "the first at once")
			require.Equal(e, batchCount(before, 7)+1, batchCount(after, 7), "the others behind it")
		}},
		{"batching/a request is never split", func(e *Env) {
			before := e.quiet("batched")
			e.together("batched", 3, 2, 8, 1)
			after := e.settled(before, 4)
			require.Equal(e, before.InferenceCount+14, after.InferenceCount)
			require.Equal(e, batchCount(before, 8)+1, batchCount(after, 8), "nothing fits beside eight rows")
		}},
		{"batching/in the order of arrival", func(e *Env) {
			before := e.quiet("batched")
			e.together("batched", 3, 2, 8, 1)
			after := e.settled(before, 4)
			for size, n := range map[uint64]uint64{3: 1, 2: 1, 8: 1, 1: 1} {
				require.Equal(e, batchCount(before, size)+n, batchCount(after, size), "batches of %d", size)
			}
		}},
		{"batching/a cancelled request still in the queue does not run", func(e *Env) {
			// A server learns of a cancel some time after its client: on a busy machine the request may have begun by then.
			for range 5 {
				if e.cancelledInLine() {
					return
				}
			}
			e.Error("every request that was cancelled in line ran")
		}},
	}
}

// cancelledInLine cancels a request of the model batched behind others and reports whether it did not run; it is counted as failed then.
func (e *Env) cancelledInLine() bool {
	e.Helper()
	before, gate, ctx := e.quiet("batched"), e.close("batched"), e.ctx()
	gone, cancel := context.WithCancel(ctx)
	defer cancel()
	send := func(ctx context.Context) <-chan error {
		return later(func() error {
			_, err := e.Client.Stub.ModelInfer(ctx, request("batched", input("INPUT0", "FP32", shape(8, 1), make([]byte, 32))))
			return err
		})
	}
	// One full batch runs, two are made ahead; the fourth waits in the queue.
	var ahead []<-chan error
	for i := range 3 {
		ahead = append(ahead, send(ctx))
		gate.holds(i+1, none)
	}
	last := send(gone)
	gate.holds(4, none)
	cancel()
	require.Error(e, <-last)
	_, err := e.Client.Live(ctx) // on the same connection, behind the cancel
	require.NoError(e, err)
	gate.open()
	for _, answer := range ahead {
		require.NoError(e, <-answer)
	}
	e.executed(before, 3)
	after := e.settled(before, 4)
	if after.ExecutionCount > before.ExecutionCount+3 {
		return false
	}
	require.Equal(e, before.ExecutionCount+3, after.ExecutionCount)
	require.Equal(e, before.InferenceStats.Fail.Count+1, after.InferenceStats.Fail.Count)
	return true
}
