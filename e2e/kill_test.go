// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// rounds is how often a test does what it does: as the variable says, which `make faults` sets, else as often as every push has time for.
func rounds(t *testing.T, variable string, n int) int {
	t.Helper()
	if text := os.Getenv(variable); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err, variable)
	}
	return n
}

// small are emulated models of a few milliseconds: "small-0", "small-1", ...
func small(n int) rig.Models {
	return rig.Copies(zoo.Profile{Model: "small", GPUType: zoo.A100, Alpha: 200 * time.Microsecond, Beta: 2 * time.Millisecond, SLO: time.Second}, n, 1, 8)
}

// steady asks models over and over, and notes every request that is not answered while conch is there. Callers whose connection a dying conch
// cut off are not lost: no conch had accepted their request for good.
type steady struct {
	// life counts ends and beginnings of conch; it is odd while there is none.
	life     atomic.Int64
	answered atomic.Int64
	begun    []atomic.Int64 // requests of each caller
	end      context.CancelFunc
	callers  sync.WaitGroup
	mu       sync.Mutex
	lost     []error
	times    []time.Duration // of answers since taken
}

// ask runs callers of the models that wanted says are served.
func ask(t *testing.T, address string, callers int, wanted func() []string) *steady {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	stub := tritonpb.NewGRPCInferenceServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	s := &steady{end: cancel, begun: make([]atomic.Int64, callers)}
	for caller := range callers {
		s.callers.Go(func() {
			for sequence := caller; ctx.Err() == nil; sequence++ {
				models := wanted()
				if life := s.life.Load(); len(models) > 0 && life%2 == 0 {
					model, value := models[sequence%len(models)], float32(sequence%1000)
					// Not the test's own context: a request is seen to its end.
					s.begun[caller].Add(1)
					within, release := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
					began := time.Now()
					r, err := stub.ModelInfer(within, tensor(model, value))
					release()
					if err == nil && firstOutput(r) != 2*value+1 {
						err = fmt.Errorf("%s: %v is answered with %v", model, value, firstOutput(r))
					} else if err != nil && s.life.Load() != life {
						err = nil
					}
					s.mu.Lock()
					if err != nil {
						s.lost = append(s.lost, fmt.Errorf("%s: %w", model, err))
					} else {
						s.answered.Add(1)
						s.times = append(s.times, time.Since(began))
					}
					s.mu.Unlock()
				}
				time.Sleep(5 * time.Millisecond) // a caller that does something else, too
			}
		})
	}
	t.Cleanup(func() { cancel(); s.callers.Wait() })
	return s
}

// asked is how many requests each caller has begun, one after the other.
func (s *steady) asked() []int64 {
	all := make([]int64, len(s.begun))
	for i := range s.begun {
		all[i] = s.begun[i].Load()
	}
	return all
}

// allAsked reports whether every caller has begun some more requests since: what was under way then has its answer.
func (s *steady) allAsked(since []int64, more int64) bool {
	for i := range s.begun {
		if s.begun[i].Load() < since[i]+more {
			return false
		}
	}
	return true
}

// taken are the times of answers since it was called last.
func (s *steady) taken() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.times
	s.times = nil
	return all
}

func (s *steady) anyLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lost) > 0
}

// requireNoneLost may be called at any time.
func (s *steady) requireNoneLost(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.lost)
}

// close ends the callers and requires that none was lost.
func (s *steady) close(t *testing.T) {
	t.Helper()
	s.end()
	s.callers.Wait()
	s.requireNoneLost(t)
	require.Positive(t, s.answered.Load())
}

// TestConchIsKilled: conch is killed at random moments of random plan changes, under load. Every time the next one ends in the newest desired
// state, by the machine's own word: no process, shared memory, socket or directory too many; servers and models that need not have changed did
// not; and requests are answered at once, before anything could have been loaded.
func TestConchIsKilled(t *testing.T) {
	t.Parallel()
	kills := rounds(t, "CONCH_KILLS", 6)
	random := rand.New(rand.NewPCG(7, uint64(kills)))
	models := small(2)
	present := randomLayout(random, 2, models.Names())
	c := serve(t, rig.ConchOptions{Models: models, Await: slices.Sorted(maps.Keys(present.models())), GPUs: 2, Settings: layoutSettings(t, present)})
	a := admin(t, c)
	before := requireLayout(t, c, a, present)

	wanted := &served{models: models.Names()}
	wanted.byAll(present)
	load := ask(t, c.GRPC, 4, wanted.names)

	var firsts []time.Duration
	quiet := watchQuiet(t)
	for range kills {
		layouts := []layout{present}
		var orders sync.WaitGroup
		var reached atomic.Int64 // the newest that was acknowledged
		for range random.IntN(3) {
			next := randomLayout(random, 2, models.Names())
			layouts = append(layouts, next)
			wanted.byAll(layouts...)
			number := int64(len(layouts) - 1)
			_, err := a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"layout": next.String()}})
			require.NoError(t, err)
			orders.Go(func() {
				r, err := a.Apply(context.WithoutCancel(t.Context()), api.ApplyRequest{})
				if err == nil && layoutOf(t, r.Plan).String() == next.String() {
					reached.Store(max(reached.Load(), number))
				}
			})
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		}
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		seen := look(t, c)
		load.requireNoneLost(t)
		load.life.Add(1)
		kill(t, c.Pid())
		<-c.Exited()
		orders.Wait()

		began := time.Now()
		require.NoError(t, c.Launch())
		first := firstAnswer(t, c, wanted.names())
		if firsts = append(firsts, first.Sub(began)); first.Sub(began) > time.Second {
			t.Logf("the first answer after %v, for %v; it ran %v; the log of conch:\n%s", first.Sub(began), layouts, seen, c.LogTail())
		}
		load.life.Add(1)
		p, err := a.Plan(t.Context())
		require.NoError(t, err)
		present = layoutOf(t, p)
		newest := layouts[reached.Load():] // those that may be desired: the last that was acknowledged, and what was ordered after it
		require.True(t, slices.ContainsFunc(newest, func(l layout) bool { return l.String() == present.String() }), "%v serves, and %v was acknowledged", present, newest[0])
		after := requireLayout(t, c, a, present)
		requireUntouched(t, before, after, layouts...)
		requireUntouched(t, seen, after, layouts...)
		wanted.byAll(present)
		before = after
	}
	load.close(t)
	slices.Sort(firsts)
	t.Logf("%d kills, %d requests answered; first answer after the next conch was started: median %v, worst %v", kills, load.answered.Load(),
		firsts[len(firsts)/2].Round(time.Millisecond), firsts[len(firsts)-1].Round(time.Millisecond))
	if quiet() {
		require.Less(t, firsts[len(firsts)-1], time.Second)
	}
}

// firstAnswer is when the first request for one of the models is answered.
func firstAnswer(t *testing.T, c *rig.Conch, models []string) time.Time {
	t.Helper()
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	require.NoError(t, err)
	defer conn.Close()
	stub := tritonpb.NewGRPCInferenceServiceClient(conn)
	for deadline := time.Now().Add(2 * time.Minute); ; {
		for _, model := range models {
			within, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err = stub.ModelInfer(within, tensor(model, 1))
			cancel()
			if err == nil {
				return time.Now()
			}
		}
		select {
		case <-c.Exited():
			require.FailNow(t, "conch has ended", "%v\n%s", c.ExitError(), c.LogTail())
		default:
			conn.ResetConnectBackoff()
			require.False(t, time.Now().After(deadline), "no request is answered: %v", err)
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// lateOnAQuietMachine is how late a sleep may end where the machine has time for what runs on it.
const lateOnAQuietMachine = 15 * time.Millisecond

// watchQuiet looks whether the machine has time for us, until the function that it returns is called, which says so. A bound on times holds on
// such a machine only.
func watchQuiet(t *testing.T) (quiet func() bool) {
	ctx, cancel := context.WithCancel(t.Context())
	worst := make(chan time.Duration, 1)
	go func() {
		var late time.Duration
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(time.Millisecond)
			late = max(late, time.Since(began)-time.Millisecond)
		}
		worst <- late
	}()
	return func() bool {
		cancel()
		late := <-worst
		t.Logf("a sleep ended at most %v late: bounds on times are checked up to %v", late.Round(time.Millisecond), lateOnAQuietMachine)
		return late <= lateOnAQuietMachine
	}
}
