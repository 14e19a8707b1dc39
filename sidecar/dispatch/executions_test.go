// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// executing has every partition of a table run n batches at once, and model m all of them.
func executing(t *router.Table, n int) *router.Table {
	for _, p := range t.Partitions {
		p.Executions = n
	}
	for i := range t.Models["m"].Places {
		t.Models["m"].Places[i].Executions = 1<<n - 1
	}
	return t
}

// beside adds a model like m to a table, with these executions of each partition.
func beside(t *router.Table, name string, executions uint64) *router.Table {
	m := *t.Models["m"]
	m.Name, m.Config, m.Places = name, modelConfig(name), nil
	for _, p := range t.Partitions {
		m.Places = append(m.Places, router.Place{Partition: p.ID, Executions: executions})
	}
	t.Models[name] = &m
	return t
}

// forModel sends a request for another model than m.
func forModel(name string) func(*tritonpb.ModelInferRequest) {
	return func(r *tritonpb.ModelInferRequest) { r.ModelName = name }
}

// TestSeveralBatchesAtOnce: a server runs two batches of a model at once, not three, and of a model with one instance one, which takes turns with those that
// may run where it is.
func TestSeveralBatchesAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 1)
		p := parts[0]
		p.hold = make(chan struct{})
		d, _ := newDispatcher(t, options, beside(executing(table(1, nil, p), 2), "single", 0b1))
		var all sync.WaitGroup
		send := func(seed uint32, change func(*tritonpb.ModelInferRequest)) {
			all.Go(func() { require.NoError(t, infer(t.Context(), t, d, seed, 8, change)) })
			synctest.Wait()
		}
		send(1, forModel("single"))
		require.Len(t, p.executions(), 1)
		send(2, nil)
		require.Len(t, p.executions(), 2, "m runs beside it")
		send(3, forModel("single"))
		send(4, nil)
		require.Len(t, p.executions(), 2, "the server runs two at once")
		close(p.hold)
		all.Wait()
		require.Len(t, p.executions(), 4)
	})
}

// TestAModelHasItsOwnExecutions: models whose instances are on different GPUs of a server run at once; those on the same GPU take turns.
func TestAModelHasItsOwnExecutions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 1)
		p := parts[0]
		p.hold = make(chan struct{})
		d, _ := newDispatcher(t, options, beside(beside(beside(executing(table(1, nil, p), 3), "a", 0b1), "b", 0b100), "also b", 0b100))
		var all sync.WaitGroup
		for i, name := range []string{"a", "b", "also b"} {
			all.Go(func() { require.NoError(t, infer(t.Context(), t, d, uint32(i), 1, forModel(name))) })
			synctest.Wait()
		}
		require.Len(t, p.executions(), 2, "the last one waits for b, although an execution of the server is free")
		close(p.hold)
		all.Wait()
		require.Len(t, p.executions(), 3)
	})
}

// TestASecondExecutionHoldsTwiceTheLoad: of a load that needs almost two servers nothing is late on one that runs two batches at once: deadlines are
// planned with when one of its executions is free. One at a time, most are late.
func TestASecondExecutionHoldsTwiceTheLoad(t *testing.T) {
	const fixed, each, slo = 8 * time.Millisecond, time.Millisecond, 60 * time.Millisecond
	for n, least := range map[int]int{1: 0, 2: 1200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, options := inBubble(t, 1)
				parts[0].asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
					time.Sleep(fixed + time.Duration(r.Inputs[0].Shape[0])*each)
				}
				d, seen := newDispatcher(t, options, executing(table(1, func(m *router.Model) { m.SLO = slo }, parts...), n))
				d.SetProfile(linear(each, fixed))
				gap := time.Duration(float64(fixed+8*each) / 8 / (.8 * 2)) // eight tenths of what two servers hold in batches of eight
				var all sync.WaitGroup
				for range 1200 {
					time.Sleep(gap)
					all.Go(func() { _ = infer(t.Context(), t, d, 1, 1, nil) })
				}
				all.Wait()
				results := seen.count(t)
				require.GreaterOrEqual(t, results[dispatch.OK], least, "%v", results)
				if n == 1 {
					require.Greater(t, results[dispatch.Late], 300, "%v", results)
				}
			})
		})
	}
}

// TestEjectionEndsAllExecutions: a server whose executions fail is ejected with all that it may run at once, and what failed there is not sent to its other
// executions.
func TestEjectionEndsAllExecutions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 2)
		sick, well := parts[0], parts[1]
		sick.refuse, well.takes = fails(errCUDA), time.Millisecond
		d, seen := newDispatcher(t, options, executing(table(1, nil, sick, well), 4))
		d.SetProfile(linear(time.Millisecond, time.Millisecond))
		for i := range 3 { // one after the other: the third in a row ejects it
			require.Empty(t, d.Unhealthy())
			require.NoError(t, infer(t.Context(), t, d, uint32(i), 1, nil))
			require.Len(t, sick.executions(), i+1, "it is not asked again for the same request")
		}
		for _, err := range inTurns(50, 8, func(i int) error { return infer(t.Context(), t, d, uint32(i), 1, nil) }) {
			require.NoError(t, err)
		}
		require.Len(t, sick.executions(), 3)
		require.True(t, d.Unhealthy()[0].Ejected)
		require.Equal(t, 53, resultsInTime(seen.count(t))[dispatch.OK])
	})
}

// TestOneExecutionDecidesAProbation: a server on probation has one execution, whose failure ejects it again. Once one has succeeded it runs as many as before.
func TestOneExecutionDecidesAProbation(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 2)
		sick, well := parts[0], parts[1]
		sick.refuse, sick.takes, well.takes = fails(errCUDA), 5*time.Millisecond, 5*time.Millisecond
		d, _ := newDispatcher(t, options, executing(table(1, func(m *router.Model) { m.SLO = time.Second }, sick, well), 4))
		d.SetProfile(linear(time.Millisecond, time.Millisecond))
		load := func() (onSick int) {
			before := len(sick.executions())
			for _, err := range inTurns(80, 20, func(i int) error { return infer(t.Context(), t, d, uint32(i), 8, nil) }) {
				require.NoError(t, err)
			}
			return len(sick.executions()) - before
		}
		for i := range 3 {
			require.NoError(t, infer(t.Context(), t, d, uint32(i), 1, nil))
		}
		require.Zero(t, load(), "it is ejected")
		time.Sleep(time.Second) // the first ejection
		require.Equal(t, 1, load())
		require.True(t, d.Unhealthy()[0].Ejected)
		time.Sleep(2 * time.Second)
		sick.set(func() { sick.refuse = nil })
		require.Greater(t, load(), 20)
		require.Empty(t, d.Unhealthy())
		most, running := 0, 0
		var mu sync.Mutex
		sick.set(func() {
			sick.takes = 0
			sick.asked = func(context.Context, *tritonpb.ModelInferRequest) {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
				mu.Lock()
				running--
				mu.Unlock()
			}
		})
		load()
		require.Equal(t, 4, most)
	})
}

// TestAnExcuseAfterTheServerHasLeftTheTable gives the server nothing to execute, although an execution is under way there.
func TestAnExcuseAfterTheServerHasLeftTheTable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 2)
		old, well := parts[0], parts[1]
		onOld, twice, onWell := make(chan struct{}), make(chan struct{}), make(chan struct{})
		old.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
			if r.Id == "id1" {
				<-onOld
			}
		}
		old.refuse = func(r *tritonpb.ModelInferRequest) error {
			if r.Id == "id1" {
				return nil
			}
			return errCUDA
		}
		well.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
			switch r.Id {
			case "id4":
				<-twice
			case "id5":
				<-onWell
			}
		}
		well.refuse = func(r *tritonpb.ModelInferRequest) error {
			if r.Id == "id4" {
				return errCUDA
			}
			return nil
		}
		d, _ := newDispatcher(t, options, executing(table(1, nil, old, well), 2))
		d.SetProfile(linear(time.Millisecond, time.Millisecond))
		var all sync.WaitGroup
		send := func(seed uint32) {
			all.Go(func() {
				err := infer(t.Context(), t, d, seed, 8, nil)
				require.Equal(t, seed == 4, err != nil, "%v", err)
			})
			synctest.Wait()
		}
		for _, seed := range []uint32{1, 2, 3, 4} { // which fails on both servers, and is the third in a row on the old one
			send(seed)
		}
		require.True(t, d.Unhealthy()[0].Ejected)
		require.NoError(t, d.Swap(t.Context(), executing(table(2, nil, well), 2)))
		for range 5 {
			send(5) // the last three wait
		}
		close(twice)
		synctest.Wait()
		close(onOld)
		synctest.Wait()
		require.Len(t, old.executions(), 4)
		close(onWell)
		all.Wait()
	})
}

// TestLossEndsAllExecutions: a server that goes down has all its executions end, and none begins before it is up again.
func TestLossEndsAllExecutions(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 2)
		p, other := parts[0], parts[1]
		p.hold = make(chan struct{})
		d, _ := newDispatcher(t, options, executing(table(1, nil, p, other), 2))
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() { require.NoError(t, infer(t.Context(), t, d, uint32(i), 1, nil)) })
			synctest.Wait()
		}
		require.Len(t, p.executions(), 2)
		d.SetPartitionState("p"+p.address, false, "its server ended")
		all.Wait()
		require.Len(t, other.executions(), 2, "both are executed again elsewhere")
		close(p.hold)
		require.NoError(t, infer(t.Context(), t, d, 3, 1, nil))
		require.Len(t, p.executions(), 2)
		d.SetPartitionState("p"+p.address, true, "")
		require.NoError(t, infer(t.Context(), t, d, 4, 1, nil))
		require.Len(t, p.executions(), 3)
	})
}

// TestExecutionsFollowTheTable: a server that may run more batches at once by the next table does, and one that may run fewer has them end.
func TestExecutionsFollowTheTable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 1)
		p := parts[0]
		d, _ := newDispatcher(t, options, table(1, nil, p))
		for revision, n := range []int{3, 1, 2} {
			require.NoError(t, d.Swap(t.Context(), executing(table(uint64(revision)+2, nil, p), n)))
			hold := make(chan struct{})
			p.set(func() { p.hold = hold })
			executed := len(p.executions())
			var all sync.WaitGroup
			for i := range n + 1 {
				all.Go(func() { require.NoError(t, infer(t.Context(), t, d, uint32(i), 8, nil)) })
				synctest.Wait()
			}
			require.Len(t, p.executions(), executed+n)
			close(hold)
			all.Wait()
		}
	})
}

// TestATableThatMovesAModelToAnotherExecution does not have it run twice at once meanwhile: a batch that runs where the model was counts among those that its
// instances take, until it ends.
func TestATableThatMovesAModelToAnotherExecution(t *testing.T) {
	for name, c := range map[string]struct {
		before, after uint64
		running, most int // batches under way at the change, and at most after it
	}{
		"a model with one instance":     {before: 0b1, after: 0b10, running: 1, most: 1},
		"back to the first":             {before: 0b10, after: 0b1, running: 1, most: 1},
		"one of two stays":              {before: 0b011, after: 0b110, running: 2, most: 2},
		"what runs stays":               {before: 0b101, after: 0b110, running: 2, most: 2},
		"it gets one more":              {before: 0b1, after: 0b110, running: 1, most: 2},
		"three instances become one":    {before: 0b111, after: 0b1, running: 3, most: 3},
		"nothing runs where it was":     {before: 0b1, after: 0b10, most: 1},
		"one runs where it is no more":  {before: 0b011, after: 0b100, running: 1, most: 1},
		"one runs, and there are three": {before: 0b1, after: 0b111, running: 1, most: 3},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, options := inBubble(t, 1)
				p := parts[0]
				hold := make(chan struct{})
				release := sync.OnceFunc(func() { close(hold) })
				defer release()
				p.hold = hold
				with := func(revision uint64, executions uint64) *router.Table {
					return beside(executing(table(revision, nil, p), 3), "moves", executions)
				}
				d, _ := newDispatcher(t, options, with(1, c.before))
				var all sync.WaitGroup
				send := func(n int) {
					for i := range n {
						all.Go(func() { require.NoError(t, infer(t.Context(), t, d, uint32(i), 8, forModel("moves"))) })
						synctest.Wait()
					}
				}
				send(c.running)
				require.Len(t, p.executions(), c.running)
				require.NoError(t, d.Swap(t.Context(), with(2, c.after)))
				send(4)
				require.Len(t, p.executions(), c.most)
				release()
				all.Wait()
				require.Len(t, p.executions(), c.running+4)

				again := make(chan struct{}) // what was held back is not for ever
				free := sync.OnceFunc(func() { close(again) })
				defer free()
				p.set(func() { p.hold = again })
				send(4)
				require.Len(t, p.executions(), c.running+4+bits.OnesCount64(c.after))
				free()
				all.Wait()
			})
		})
	}
}

// TestAModelThatLosesAnExecutionGetsNoneBack for one of its own that ends: whichever of three batches ends first, the two that run on are as many as the model
// has instances by then.
func TestAModelThatLosesAnExecutionGetsNoneBack(t *testing.T) {
	for first := range 3 {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, options := inBubble(t, 1)
				p := parts[0]
				var ends [5]chan struct{}
				for i := range ends {
					ends[i] = make(chan struct{})
				}
				p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) { <-ends[r.Id[len("id")]-'0'] }
				with := func(revision uint64, executions uint64) *router.Table {
					return beside(executing(table(revision, nil, p), 3), "loses", executions)
				}
				d, _ := newDispatcher(t, options, with(1, 0b111))
				var all sync.WaitGroup
				send := func(i int) {
					all.Go(func() { require.NoError(t, infer(t.Context(), t, d, uint32(i), 8, forModel("loses"))) })
					synctest.Wait()
				}
				for i := range 3 {
					send(i)
				}
				require.Len(t, p.executions(), 3)
				require.NoError(t, d.Swap(t.Context(), with(2, 0b011)))
				send(3)
				send(4)
				close(ends[first])
				synctest.Wait()
				require.Len(t, p.executions(), 3, "two run on")
				for i := range ends {
					if i != first {
						close(ends[i])
						synctest.Wait()
					}
				}
				all.Wait()
				require.Len(t, p.executions(), 5)
			})
		})
	}
}

// TestAHangWithSeveralExecutionsIsOne: of a server that hangs with several executions under way the owner hears once.
func TestAHangWithSeveralExecutionsIsOne(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		parts, options := inBubble(t, 2)
		sick, well := parts[0], parts[1]
		sick.hold = make(chan struct{})
		defer close(sick.hold)
		hung := make(chan string, 10)
		options.HangFloor, options.Hung = time.Second, func(partition string, _ error) { hung <- partition }
		d, _ := newDispatcher(t, options, executing(table(1, nil, sick, well), 2))
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() { require.NoError(t, infer(t.Context(), t, d, uint32(i), 1, nil)) })
			synctest.Wait()
		}
		require.Len(t, sick.executions(), 2)
		all.Wait()
		require.Equal(t, "p"+sick.address, <-hung)
		require.Empty(t, hung)
		require.Len(t, well.executions(), 2)
	})
}

// TestATableWithExecutionsThatAPartitionLacksIsRefused: a place names executions of its partition.
func TestATableWithExecutionsThatAPartitionLacksIsRefused(t *testing.T) {
	wrong := executing(table(1, nil, newTriton(t)), 4)
	wrong.Partitions[0].Executions = 3
	require.ErrorContains(t, wrong.Check(), `model "m" has execution 3 of partition`)
}
