// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe"
)

func execute(r *observe.Recorder, model string, rows int, took time.Duration) {
	r.Executed(observe.Execution{Model: model, Partition: "p", GPUType: "T4", ThreadPercentage: 100, Rows: rows, Start: start, End: start.Add(took)})
}

// steadily executes batches of so many rows, ten a second for some seconds, and returns when they end.
func steadily(r *observe.Recorder, model string, from time.Time, seconds, rows int, took func() time.Duration) time.Time {
	for i := range 10 * seconds {
		at := from.Add(time.Duration(i) * 100 * time.Millisecond)
		r.Executed(observe.Execution{Model: model, Partition: "p", GPUType: "T4", ThreadPercentage: 100, Rows: rows, Start: at, End: at.Add(took())})
	}
	return from.Add(time.Duration(seconds) * time.Second)
}

func always(took time.Duration) func() time.Duration { return func() time.Duration { return took } }

func profile(t testing.TB, r *observe.Recorder) *policy.Profile {
	all := r.Profiles()
	require.Len(t, all, 1)
	return all[0]
}

func line(alpha, beta time.Duration, rows int) time.Duration { return beta + time.Duration(rows)*alpha }

// TestProfileLearnsOnline: unusable with a reason until two batch sizes are
// known, then the mean and one deviation, extended along the fit.
func TestProfileLearnsOnline(t *testing.T) {
	r, random := recorder(t), rand.New(rand.NewPCG(3, 4))
	r.SetModel("m", "r1", 16, nil)
	require.Equal(t, "nothing was observed yet", r.Unusable("m", "T4"))
	noisy := func(rows int) func() time.Duration {
		return func() time.Duration {
			return time.Duration(float64(line(time.Millisecond, 5*time.Millisecond, rows)) * (1 + .02*random.NormFloat64()))
		}
	}
	now := steadily(r, "m", start, 5, 1, noisy(1))
	require.False(t, profile(t, r).GetUsable())
	require.Equal(t, "only one batch size was observed often enough", r.Unusable("m", "T4"))
	now = steadily(r, "m", now, 5, 4, noisy(4))
	p := profile(t, r)
	require.True(t, p.GetUsable())
	require.Empty(t, r.Unusable("m", "T4"))
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_OBSERVED, p.GetSource())
	for _, rows := range []uint32{1, 2, 4, 8, 16} {
		want := float64(line(time.Millisecond, 5*time.Millisecond, int(rows)).Microseconds())
		got, ok := p.Latency(rows, 100)
		require.True(t, ok)
		require.InEpsilon(t, want, got, .1, "batch %d", rows)
		upper, _ := p.Upper(rows, 100)
		require.Greater(t, upper, got)
		require.Less(t, upper, 1.15*want)
	}
	// One stall of a second must not move a deadline by much.
	before, _ := p.Upper(4, 100)
	r.Executed(observe.Execution{Model: "m", Partition: "p", GPUType: "T4", ThreadPercentage: 100, Rows: 4, Start: now, End: now.Add(time.Second)})
	after, _ := profile(t, r).Upper(4, 100)
	require.InEpsilon(t, before, after, .05)
}

// TestProfileIgnores what says nothing about l(b).
func TestProfileIgnores(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 4, nil)
	e := observe.Execution{Model: "m", Partition: "p", GPUType: "T4", ThreadPercentage: 100, Rows: 1, Start: start, End: start.Add(time.Millisecond)}
	failed, shared, backwards := e, e, e
	failed.Err = errors.New("boom")
	shared.Shared = true
	backwards.End = start.Add(-time.Millisecond)
	for _, e := range []observe.Execution{failed, shared, backwards} {
		r.Executed(e)
	}
	require.Empty(t, r.Profiles())
}

// TestCalibratedThenObserved: the warm-up's curve keeps its shape and takes the
// level of what is seen live.
func TestCalibratedThenObserved(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 8, nil)
	samples := make([]observe.Sample, 0, 12)
	for _, rows := range []int{1, 2, 4, 8} {
		for range 3 {
			samples = append(samples, observe.Sample{Rows: rows, Duration: line(time.Millisecond, 4*time.Millisecond, rows)})
		}
	}
	r.Calibrated("m", "T4", 100, samples)
	p := profile(t, r)
	require.True(t, p.GetUsable())
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_CALIBRATED, p.GetSource())
	l8, _ := p.Latency(8, 100)
	require.InDelta(t, 12_000, l8, 1)
	steadily(r, "m", start, 20, 2, always(12*time.Millisecond)) // twice what was calibrated
	p = profile(t, r)
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_OBSERVED, p.GetSource())
	l8, _ = p.Latency(8, 100)
	require.InEpsilon(t, 24_000, l8, .03)
	require.True(t, p.GetInterfered())
}

// TestOneStallWhileCalibrating: the machine stalls during one of a warm-up's three executions of eight rows. If the curve believed it, batches
// of eight would never be tried, and nothing would ever correct it.
func TestOneStallWhileCalibrating(t *testing.T) {
	for stalled := range 3 {
		r := recorder(t)
		r.SetModel("m", "r1", 8, nil)
		var samples []observe.Sample
		for _, rows := range []int{1, 2, 4, 8} {
			for i := range 3 {
				took := line(time.Millisecond, 4*time.Millisecond, rows)
				if rows == 8 && i == stalled {
					took += 30 * time.Millisecond
				}
				samples = append(samples, observe.Sample{Rows: rows, Duration: took})
			}
		}
		r.Calibrated("m", "T4", 100, samples)
		l8, _ := profile(t, r).Latency(8, 100)
		require.InDelta(t, 12_000, l8, 1)
		u8, _ := profile(t, r).Upper(8, 100)
		require.InDelta(t, 12_000, u8, 1)
	}
}

// TestInterfered is INFaaS's rule: above 1.5 times, until below 1.25 times; for ten seconds, and a minute after the last change.
func TestInterfered(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 1, nil)
	r.Calibrated("m", "T4", 100, []observe.Sample{{Rows: 1, Duration: 10 * time.Millisecond}})
	require.False(t, profile(t, r).GetInterfered())
	now := start
	for i, step := range []struct {
		seconds int
		took    time.Duration
		want    bool
	}{
		{20, 10, false}, {20, 14, false}, {8, 16, false}, {8, 14, false}, {8, 16, false}, {8, 16, true}, {20, 14, true}, {20, 13, true},
		{20, 12, false}, {20, 16, false}, {20, 16, false}, {25, 16, true}, {30, 10, true},
	} {
		now = steadily(r, "m", now, step.seconds, 1, always(step.took*time.Millisecond))
		require.Equal(t, step.want, profile(t, r).GetInterfered(), "step %d: %d ms", i, step.took)
	}
}

func TestDeclaredProfile(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 32, &observe.Line{Alpha: 1053 * time.Microsecond, Beta: 5072 * time.Microsecond})
	r.DeclareOn("m", "A100-80GB")
	p := profile(t, r)
	require.True(t, p.GetUsable())
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_DECLARED, p.GetSource())
	for _, rows := range []uint32{1, 7, 32, 33} {
		got, _ := p.Upper(rows, 100)
		require.InDelta(t, 5072+1053*float64(rows), got, .5)
	}
}

// TestNewRevisionForgets: files that changed may take another time.
func TestNewRevisionForgets(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 1, nil)
	for range 10 {
		execute(r, "m", 1, time.Millisecond)
	}
	r.SetModel("m", "r1", 1, nil)
	require.True(t, profile(t, r).GetUsable())
	r.SetModel("m", "r2", 1, nil)
	require.Empty(t, r.Profiles())
}

// counting is a store that counts the values that are written.
type counting struct {
	store.Store
	writes int
}

func (c *counting) Later(changes ...store.Change) error {
	c.writes += len(changes)
	return c.Store.Later(changes...)
}

// unreadable is a store that cannot be read at the moment.
type unreadable struct{ store.Store }

var errUnreadable = errors.New("no answer")

func (unreadable) Get(string, string) ([]byte, error) { return nil, errUnreadable }

// TestSavedProfiles come back for the same revision of a model, and for no
// other.
func TestSavedProfiles(t *testing.T) {
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "state.db"), 0o600, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	r := recorder(t)
	require.NoError(t, r.Restore(store.NewBolt(db)), "an empty state is no error")
	r.SetModel("m", "r1", 8, nil)
	r.Calibrated("m", "T4", 50, []observe.Sample{{Rows: 1, Duration: time.Millisecond}, {Rows: 8, Duration: 3 * time.Millisecond}})
	for i := range 3 * 64 {
		execute(r, "m", 1+i%3, line(time.Millisecond, 5*time.Millisecond+time.Duration(i), 1+i%3))
	}
	kept := &counting{Store: store.NewBolt(db)}
	require.NoError(t, r.Save(kept))
	require.NoError(t, r.Save(kept))
	require.Equal(t, 1, kept.writes, "it is known already")

	same := recorder(t)
	same.SetModel("m", "r1", 8, nil)
	require.NoError(t, same.Restore(store.NewBolt(db)))
	require.Empty(t, cmp.Diff(r.Profiles(), same.Profiles(), protocmp.Transform()))

	later := recorder(t)
	later.SetModel("m", "r1", 8, nil)
	require.ErrorIs(t, later.Restore(unreadable{kept}), errUnreadable)
	require.NoError(t, later.Restore(kept), "it is looked for again")
	require.Empty(t, cmp.Diff(r.Profiles(), later.Profiles(), protocmp.Transform()))

	other := recorder(t)
	other.SetModel("m", "r2", 8, nil)
	require.NoError(t, other.Restore(store.NewBolt(db)))
	require.Empty(t, other.Profiles())

	require.NoError(t, observe.Prune(kept, []string{"m"}))
	require.Equal(t, 1, kept.writes)
	require.NoError(t, observe.Prune(kept, []string{"n"}))
	gone := recorder(t)
	gone.SetModel("m", "r1", 8, nil)
	require.NoError(t, gone.Restore(kept))
	require.Empty(t, gone.Profiles())
	execute(r, "m", 1, time.Millisecond)
	require.NoError(t, r.Save(kept))
	require.Equal(t, 3, kept.writes, "what is learnt since is written")
}

// TestProfileInvariants: whatever was observed, latencies grow with the batch,
// the upper one is never below the mean, and nothing is negative or NaN.
func TestProfileInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, err := observe.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		maxBatch := rapid.IntRange(1, 200).Draw(t, "max")
		var declared *observe.Line
		if rapid.Bool().Draw(t, "declared") {
			declared = &observe.Line{
				Alpha: time.Duration(rapid.IntRange(0, 1e7).Draw(t, "alpha")),
				Beta:  time.Duration(rapid.IntRange(1, 1e7).Draw(t, "beta")),
			}
		}
		r.SetModel("m", "r", maxBatch, declared)
		r.DeclareOn("m", "T4")
		sample := rapid.Custom(func(t *rapid.T) observe.Sample {
			return observe.Sample{Rows: rapid.IntRange(1, maxBatch).Draw(t, "rows"), Duration: time.Duration(rapid.IntRange(1, 1e9).Draw(t, "took"))}
		})
		r.Calibrated("m", "T4", 100, rapid.SliceOfN(sample, 0, 20).Draw(t, "calibrated"))
		for _, s := range rapid.SliceOfN(sample, 0, 200).Draw(t, "observed") {
			execute(r, "m", s.Rows, s.Duration)
		}
		for _, p := range r.Profiles() {
			mean, upper, batch := 0.0, 0.0, uint32(0)
			for _, q := range p.GetPoints() {
				l, u := q.GetLatencyUs().GetValue(), q.GetLatencyUpperUs()
				if math.IsNaN(l) || math.IsInf(u, 0) || l <= 0 || l < mean-1e-6 || u < upper || u < l-1e-6 || q.GetBatch() <= batch {
					t.Fatalf("batch %d: mean %v (before %v), upper %v (before %v)", q.GetBatch(), l, mean, u, upper)
				}
				mean, upper, batch = l, u, q.GetBatch()
			}
			if int(batch) != maxBatch {
				t.Fatalf("the grid ends at %d, not at %d", batch, maxBatch)
			}
		}
	})
}

func TestMoved(t *testing.T) {
	at := func(upper float64, usable bool) *policy.Profile {
		return &policy.Profile{Usable: usable, Points: []*policy.ProfilePoint{{Batch: 1, ThreadPercentage: 100, LatencyUpperUs: upper}}}
	}
	require.True(t, observe.Moved(nil, at(100, true), .02))
	require.False(t, observe.Moved(at(100, true), at(101, true), .02))
	require.True(t, observe.Moved(at(100, true), at(103, true), .02))
	require.True(t, observe.Moved(at(100, false), at(100, true), .02))
	require.True(t, observe.Moved(at(100, true), &policy.Profile{Usable: true}, .02))
}

// BenchmarkProfiles is what a look at a model's profile costs the plan path: sixteen batch sizes in use.
func BenchmarkProfiles(b *testing.B) {
	r, err := observe.New(nil)
	require.NoError(b, err)
	r.SetModel("m", "r", 32, &observe.Line{Alpha: time.Millisecond, Beta: 5 * time.Millisecond})
	for i := range 16 {
		steadily(r, "m", start, 20, i+1, always(line(time.Millisecond, 5*time.Millisecond, i+1)))
	}
	for i := 0; b.Loop(); i++ {
		execute(r, "m", 1+i%16, line(time.Millisecond, 5*time.Millisecond, 1+i%16))
		r.Profiles()
	}
}
