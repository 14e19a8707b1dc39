// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
)

// together sends requests of the given rows at once and waits for all answers.
func (e *Env) together(model string, rows ...int64) {
	e.Helper()
	ctx := e.ctx()
	errs := make([]error, len(rows))
	var all sync.WaitGroup
	for i, n := range rows {
		all.Go(func() {
			_, errs[i] = e.Client.Stub.ModelInfer(ctx, request(model, input("INPUT0", "FP32", shape(n, 1), make([]byte, 4*n))))
		})
		switch {
		case i == 0:
			time.Sleep(40 * time.Millisecond) // the first alone
		case i+1 < len(rows) && rows[i+1] != n:
			time.Sleep(20 * time.Millisecond) // in this order
		}
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(e, err)
	}
}

// batchingCases see what runs together by the statistics. The models take 200 ms per execution, so that the rest queues meanwhile.
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
			// On a busy machine the cancel may overtake its request, which is no request then.
			for range 5 {
				if e.cancelledInLine() {
					return
				}
			}
			e.Error("no cancelled request was counted as failed")
		}},
	}
}

// cancelledInLine cancels a request of the model batched behind others, which must not run, and reports whether it was counted.
func (e *Env) cancelledInLine() bool {
	e.Helper()
	before := e.quiet("batched")
	first := make(chan error, 1)
	ctx := e.ctx()
	send := func(ctx context.Context) error {
		_, err := e.Client.Stub.ModelInfer(ctx, request("batched", input("INPUT0", "FP32", shape(8, 1), make([]byte, 32))))
		return err
	}
	// One full batch runs, two are made ahead; the fourth waits in the queue.
	var ahead sync.WaitGroup
	go func() { first <- send(ctx) }()
	time.Sleep(20 * time.Millisecond)
	for range 2 {
		ahead.Go(func() { _ = send(ctx) })
	}
	time.Sleep(20 * time.Millisecond)
	gone, cancel := context.WithCancel(ctx)
	last := make(chan error, 1)
	go func() { last <- send(gone) }()
	time.Sleep(40 * time.Millisecond)
	cancel()
	require.Error(e, <-last)
	require.NoError(e, <-first)
	ahead.Wait()
	e.executed(before, 3)
	after := e.settled(before, 3)
	require.Equal(e, before.ExecutionCount+3, after.ExecutionCount)
	return after.InferenceStats.Fail.Count == before.InferenceStats.Fail.Count+1
}
