// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/loadgen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// virtual is the time of testing/synctest.
type virtual struct{}

func (virtual) Now() time.Time        { return time.Now() }
func (virtual) Sleep(d time.Duration) { time.Sleep(d) }

type callerFunc func(ctx context.Context, model int, sequence uint64) error

func (f callerFunc) Call(ctx context.Context, model int, sequence uint64) error {
	return f(ctx, model, sequence)
}

// taking answers after d, or gives up with ctx.
func taking(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestRunAccountsForEveryRequest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		load := loadgen.Load{
			Models: []loadgen.Model{
				{Name: "good", SLO: 20 * time.Millisecond, Weight: 2},
				{Name: "late", SLO: 5 * time.Millisecond},
				{Name: "failing", SLO: time.Second},
				{Name: "wrong", SLO: time.Second},
				{Name: "silent", SLO: time.Second},
			},
			Rate: 600, Warmup: time.Second, Measure: 10 * time.Second, Patience: time.Second, Seed: 7,
		}
		broken := errors.New("broken")
		result, err := loadgen.Run(t.Context(), load, callerFunc(func(ctx context.Context, model int, _ uint64) error {
			switch load.Models[model].Name {
			case "failing":
				return broken
			case "wrong":
				return loadgen.ErrWrong
			case "silent":
				return taking(ctx, time.Hour)
			}
			return taking(ctx, 10*time.Millisecond)
		}), virtual{})
		require.NoError(t, err)

		want := map[string]float64{"good": 0, "late": 1, "failing": 1, "wrong": 1, "silent": 1}
		for _, m := range result.Models {
			require.Equal(t, m.Sent, m.Good+m.Late+m.Failed+m.Wrong, m.Name)
			require.InDelta(t, want[m.Name], m.Bad(), 0, m.Name)
			mean := 1000.0
			if m.Name == "good" {
				mean = 2000
			}
			require.InDelta(t, mean, m.Sent, 5*math.Sqrt(mean), "%s: Poisson arrivals in proportion to the weights", m.Name)
		}
		latency, ok := result.Models[0].Quantile(0.99)
		require.True(t, ok)
		require.Equal(t, 10*time.Millisecond, latency)
		_, ok = result.Models[4].Quantile(0.5)
		require.False(t, ok, "half of nothing was answered")
		require.InDelta(t, 200, result.Goodput(), 15)
		failed, wrong, first := result.Faults()
		require.Equal(t, result.Models[2].Sent, failed)
		require.Equal(t, result.Models[3].Sent, wrong)
		require.ErrorIs(t, first, broken)
	})
}

// A generator that waits for answers would hide the queue that it makes.
func TestLatencyCountsFromTheArrival(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server := make(chan struct{}, 1)
		load := loadgen.Load{
			Models: []loadgen.Model{{Name: "m", SLO: time.Second}}, Rate: 200, Arrivals: loadgen.Fixed, Measure: 2 * time.Second, Patience: time.Minute,
		}
		result, err := loadgen.Run(t.Context(), load, callerFunc(func(context.Context, int, uint64) error {
			server <- struct{}{}
			time.Sleep(10 * time.Millisecond) // half as fast as the load
			<-server
			return nil
		}), virtual{})
		require.NoError(t, err)
		require.Equal(t, 399, result.Models[0].Sent)
		latency, _ := result.Models[0].Quantile(1)
		require.Equal(t, (5+399*10-399*5)*time.Millisecond, latency, "the last came at 399*5 ms and was answered at 5 + 399*10 ms")
		require.InDelta(t, 0.5, result.Bad(), 0.01)
	})
}

// A load that is ended counts what was sent until then, as a load of that length.
func TestUntilEndsTheLoad(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		time.AfterFunc(2*time.Second+time.Millisecond, func() { close(until) })
		load := loadgen.Load{
			Models: []loadgen.Model{{Name: "m", SLO: time.Second}}, Rate: 100, Arrivals: loadgen.Fixed, Warmup: time.Second, Measure: time.Hour,
			Until: until, Patience: time.Minute,
		}
		result, err := loadgen.Run(t.Context(), load, callerFunc(func(ctx context.Context, _ int, _ uint64) error {
			return taking(ctx, 10*time.Millisecond)
		}), virtual{})
		require.NoError(t, err)
		require.Equal(t, 101, result.Models[0].Sent, "from 1 s to 2 s, every 10 ms")
		require.Zero(t, result.Bad())
		require.Equal(t, 1010*time.Millisecond, result.Measured)
		require.InDelta(t, 100, result.Goodput(), 1e-9)
	})
}

func TestHopelessRunEndsEarly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		start := time.Now()
		load := loadgen.Load{
			Models: []loadgen.Model{{Name: "m", SLO: time.Millisecond}}, Rate: 1000, Measure: time.Minute, Patience: time.Hour, AbortAbove: 0.01,
		}
		result, err := loadgen.Run(t.Context(), load, callerFunc(func(ctx context.Context, _ int, _ uint64) error {
			return taking(ctx, 2*time.Millisecond)
		}), virtual{})
		require.NoError(t, err)
		require.True(t, result.Aborted)
		require.Less(t, time.Since(start), 5*time.Second)
	})
}

// TestNoRequestOfAHopelessRunIsCancelled, if that is asked for.
func TestNoRequestOfAHopelessRunIsCancelled(t *testing.T) {
	for _, uncancelled := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			var cancelled atomic.Int32
			load := loadgen.Load{
				Models: []loadgen.Model{{Name: "m", SLO: time.Millisecond}}, Rate: 1000, Measure: time.Minute, Patience: time.Minute, AbortAbove: 0.01, Uncancelled: uncancelled,
			}
			result, err := loadgen.Run(t.Context(), load, callerFunc(func(ctx context.Context, _ int, _ uint64) error {
				err := taking(ctx, time.Second)
				if ctx.Err() != nil {
					cancelled.Add(1)
				}
				return err
			}), virtual{})
			require.NoError(t, err)
			require.True(t, result.Aborted)
			require.Equal(t, uncancelled, cancelled.Load() == 0)
		})
	}
}

// TestARunEndsWithTheFirstModelThatCannotHold: a tenth of the requests are of a model all of whose answers are late, and of its twenty one may be. The warm-up's
// do not count.
func TestARunEndsWithTheFirstModelThatCannotHold(t *testing.T) {
	var given []loadgen.Arrival
	for i := range 220 {
		given = append(given, loadgen.Arrival{At: time.Duration(i) * 100 * time.Millisecond, Model: min(1, i%10) ^ 1})
	}
	for _, c := range []struct {
		each float64
		sent int
	}{{.05, 2}, {1, 20}, {0, 20}} {
		bubble.Test(t, func(t *testing.T) {
			load := loadgen.Load{
				Models: []loadgen.Model{{Name: "often", SLO: time.Second}, {Name: "seldom", SLO: time.Millisecond}}, Given: given, Warmup: 2 * time.Second, Measure: 20 * time.Second,
				Patience: time.Second, AbortEach: c.each,
			}
			result, err := loadgen.Run(t.Context(), load, callerFunc(func(ctx context.Context, _ int, _ uint64) error {
				return taking(ctx, 10*time.Millisecond)
			}), virtual{})
			require.NoError(t, err)
			require.Equal(t, c.sent < 20, result.Aborted)
			require.Equal(t, c.sent, result.Models[1].Sent)
		})
	}
}

func TestEqualSeedsGiveEqualLoads(t *testing.T) {
	draw := func(seed uint64) (got []int) {
		bubble.Test(t, func(t *testing.T) {
			load := loadgen.Load{
				Models: []loadgen.Model{{Name: "a", SLO: time.Second}, {Name: "b", SLO: time.Second}}, Rate: 100, Measure: time.Second, Patience: time.Second, Seed: seed,
			}
			result, err := loadgen.Run(t.Context(), load, callerFunc(func(ctx context.Context, _ int, sequence uint64) error {
				return taking(ctx, time.Duration(sequence)*time.Microsecond)
			}), virtual{})
			require.NoError(t, err)
			got = []int{result.Models[0].Sent, result.Models[1].Sent}
		})
		return got
	}
	require.Equal(t, draw(1), draw(1))
	require.NotEqual(t, draw(1), draw(2))
}

func TestRunRefusesNonsense(t *testing.T) {
	for _, load := range []loadgen.Load{{}, {Rate: 1}, {Rate: 1, Models: []loadgen.Model{{Name: "m"}}}, {Rate: -1, Models: []loadgen.Model{{Name: "m"}}, Measure: 1}} {
		_, err := loadgen.Run(t.Context(), load, nil, virtual{})
		require.ErrorContains(t, err, "must be positive")
	}
}

func TestClosedKeepsItsCallersBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		result, err := loadgen.Closed(t.Context(), 4, time.Second, callerFunc(func(ctx context.Context, _ int, _ uint64) error {
			return taking(ctx, 10*time.Millisecond)
		}), virtual{})
		require.NoError(t, err)
		require.Equal(t, 400, result.Calls)
		require.InDelta(t, 400, result.PerSecond(), 0)
		require.Equal(t, 10*time.Millisecond, result.Quantile(0.5))

		broken := errors.New("broken")
		_, err = loadgen.Closed(t.Context(), 4, time.Hour, callerFunc(func(ctx context.Context, _ int, sequence uint64) error {
			if sequence == 41 {
				return broken
			}
			return taking(ctx, time.Millisecond)
		}), virtual{})
		require.ErrorIs(t, err, broken)
	})
}

// Whatever a system holds, the search comes as close as its resolution, from below.
func TestSearchFindsTheHighestRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(1, 100000).Draw(t, "capacity")
		start := rapid.Float64Range(10, 10000).Draw(t, "start")
		search := loadgen.Search{Start: start, Resolution: 0.03, Least: 0.1}
		probes := 0
		got, err := search.Highest(context.Background(), func(_ context.Context, rate float64) (bool, error) {
			probes++
			return rate <= capacity, nil
		})
		require.NoError(t, err)
		require.LessOrEqual(t, got, capacity)
		require.Greater(t, got*1.031, capacity)
		require.Less(t, probes, 30)
	})
}

func TestSearchGivesUp(t *testing.T) {
	got, err := loadgen.Search{Start: 100}.Highest(t.Context(), func(context.Context, float64) (bool, error) { return false, nil })
	require.NoError(t, err)
	require.Zero(t, got)
	broken := errors.New("broken")
	_, err = loadgen.Search{Start: 100}.Highest(t.Context(), func(context.Context, float64) (bool, error) { return false, broken })
	require.ErrorIs(t, err, broken)
}

// TestGivenArrivals: exactly those are sent, at their times, and the log says when and what became of each.
func TestGivenArrivals(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		load := loadgen.Load{
			Models: []loadgen.Model{{Name: "a", SLO: time.Second}, {Name: "b", SLO: time.Millisecond}},
			Given: []loadgen.Arrival{
				{At: 100 * time.Millisecond, Model: 1}, {At: 1200 * time.Millisecond}, {At: 1200 * time.Millisecond, Model: 1}, {At: 3 * time.Second},
			},
			Warmup: time.Second, Measure: time.Second, Patience: time.Second, Log: true,
		}
		started := time.Now()
		result, err := loadgen.Run(t.Context(), load, callerFunc(func(ctx context.Context, model int, _ uint64) error {
			return taking(ctx, time.Duration(model+1)*10*time.Millisecond)
		}), virtual{})
		require.NoError(t, err)
		require.Equal(t, started, result.Start)
		require.Len(t, result.Log, 3, "the last lies beyond the end")
		require.Equal(t, loadgen.Entry{Arrival: load.Given[0], Sent: 100 * time.Millisecond, Latency: 20 * time.Millisecond}, result.Log[0])
		require.Equal(t, 1, result.Models[0].Good)
		require.Equal(t, 1, result.Models[1].Late)

		load.Given[0].Model = 2
		_, err = loadgen.Run(t.Context(), load, callerFunc(nil), virtual{})
		require.ErrorContains(t, err, "model 2")
		load.Given[0] = loadgen.Arrival{At: time.Minute}
		_, err = loadgen.Run(t.Context(), load, callerFunc(nil), virtual{})
		require.ErrorContains(t, err, "go back")
	})
}
