// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package recent_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/observe/recent"
)

const window = 5 * time.Second

var start = time.Unix(1_700_000_000, 0)

func ended(model, result string, after, latency time.Duration) *recent.Request {
	return &recent.Request{
		Model: model, Result: result, InTime: result == "ok", Answered: result == "ok" || result == "late", Ended: start.Add(after),
		Latency: latency, Wait: latency / 4, Gather: latency / 8, Execute: latency / 2,
	}
}

func TestRequestsAreCountedByHowTheyEnded(t *testing.T) {
	r := recent.New(recent.Options{Window: window, Now: start})
	for range 6 {
		r.Finished(ended("m", "ok", 0, 8*time.Millisecond))
	}
	r.Finished(ended("m", "late", time.Second, 80*time.Millisecond))
	for range 2 {
		q := ended("m", "dropped", time.Second, 40*time.Millisecond)
		q.Reason = "late"
		r.Finished(q)
	}
	gone := ended("m", "cancelled", time.Second, time.Second)
	gone.Left = true
	r.Finished(gone)
	r.Finished(ended("", "refused", time.Second, 0))
	loaded := ended("m", "cold", time.Second, 10*time.Second)
	loaded.Cold = true
	r.Finished(loaded)
	require.Equal(t, 10., r.Slowest("m", start.Add(2*time.Second))[0].LatencySeconds, "who waited for a load is shown")

	all := r.Models(start.Add(2 * time.Second))
	require.Len(t, all, 1)
	got := all[0]
	require.Equal(t, "m", got.Model)
	require.Equal(t, 5., got.Now.Seconds)
	require.EqualValues(t, 9, got.Now.Requests, "who left does not count, nor who waited for a load")
	require.EqualValues(t, 6, got.Now.InTime)
	require.Equal(t, []api.OutcomeCount{{Result: "dropped", Reason: "late", Count: 2}, {Result: "late", Count: 1}}, got.Now.Outcomes)
	mean := (6*.008 + .08) / 7
	require.InDelta(t, mean/4, got.Now.Spent.Wait, 1e-9)
	require.InDelta(t, mean/8, got.Now.Spent.Gather, 1e-9)
	require.InDelta(t, mean/2, got.Now.Spent.Execute, 1e-9)
	require.InDelta(t, mean/8, got.Now.Spent.Conch, 1e-9)
	require.Equal(t, 60., got.Hour.Seconds)
	require.Equal(t, got.Now.Requests, got.Hour.Requests)

	got = r.Models(start.Add(10 * time.Second))[0]
	require.Zero(t, got.Now.Requests)
	require.Nil(t, got.Now.Spent)
	require.EqualValues(t, 9, got.Hour.Requests)
	require.Equal(t, r.Models(start.Add(10*time.Second)), r.Models(start.Add(30*time.Second)), "what is idle does not change all the time")

	require.Equal(t, 3600., r.Models(start.Add(59*time.Minute + 30*time.Second))[0].Hour.Seconds)
	require.Empty(t, r.Models(start.Add(2*time.Hour)), "and is forgotten in the end")

	loaded.Model = "loaded"
	r.Finished(loaded)
	require.Zero(t, r.Models(start.Add(2 * time.Second))[0].Hour.Requests)
	require.Len(t, r.Slowest("loaded", start.Add(2*time.Second)), 1, "and of a model that has no other")
	require.Empty(t, r.Models(start.Add(2*time.Hour)))
}

// Counting goes by what ended in the window, to a slot; and in the hour, to a minute.
func TestCountsAreThoseOfTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := recent.New(recent.Options{Window: window, Now: start})
		var all []*recent.Request
		now := time.Duration(0)
		for range rapid.IntRange(1, 200).Draw(t, "requests") {
			now += time.Duration(rapid.SampledFrom([]int{0, 1, 100, 499, 500, 3000, 40_000, 600_000}).Draw(t, "gap")) * time.Millisecond
			q := ended("m", rapid.SampledFrom([]string{"ok", "late", "dropped"}).Draw(t, "result"), now, time.Millisecond)
			all = append(all, q)
			r.Finished(q)
		}
		now += time.Duration(rapid.IntRange(0, 10_000).Draw(t, "after")) * time.Millisecond
		within := func(length time.Duration) (n, ok uint64) {
			for _, q := range all {
				if q.Ended.After(start.Add(now).Add(-length)) {
					n++
					if q.InTime {
						ok++
					}
				}
			}
			return n, ok
		}
		got := r.Models(start.Add(now))[0]
		least, _ := within(window - 500*time.Millisecond)
		most, mostOK := within(window + 500*time.Millisecond)
		if got.Now.Requests < least || got.Now.Requests > most || got.Now.InTime > mostOK {
			t.Fatalf("%d requests in the window, not between %d and %d", got.Now.Requests, least, most)
		}
		least, leastOK := within(time.Hour - time.Minute)
		most, mostOK = within(time.Hour + time.Minute)
		if got.Hour.Requests < least || got.Hour.Requests > most || got.Hour.InTime < leastOK || got.Hour.InTime > mostOK {
			t.Fatalf("%d requests in the hour, not between %d and %d", got.Hour.Requests, least, most)
		}
		for _, a := range []api.Attainment{got.Now, got.Hour} {
			sum := a.InTime
			for _, o := range a.Outcomes {
				sum += o.Count
			}
			if sum != a.Requests {
				t.Fatalf("%d requests, of which %d have an outcome", a.Requests, sum)
			}
		}
	})
}

// A steady load has its rate at every moment, however much of the present slot has passed.
func TestRatesAreOverTheTimeThatIsCovered(t *testing.T) {
	r := recent.New(recent.Options{Window: window, Now: start})
	const every = 5 * time.Millisecond
	for after := time.Duration(0); after < 10*time.Second; after += every {
		r.Finished(ended("m", "ok", after, time.Millisecond))
		if after < 6*time.Second {
			continue
		}
		got := r.Models(start.Add(after))[0].Now
		require.InEpsilon(t, 1/every.Seconds(), float64(got.Requests)/got.Seconds, .002, "%v after a slot began", after%(500*time.Millisecond))
		require.GreaterOrEqual(t, got.Seconds, window.Seconds())
		require.Less(t, got.Seconds, window.Seconds()+.5)
	}
}

// The minutes of the last hour are what ended in each of them; whoever asks again gets those since.
func TestMinutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := recent.New(recent.Options{Window: window, Now: start})
		want := map[int64]map[string]api.Counted{} // by start
		now, after := time.Duration(0), uint64(0)
		look := func(after uint64) (last uint64) {
			present := start.Add(now).Add(-time.Second).Unix() / 60
			all, first := r.Minutes(after, start.Add(now))
			got := map[int64]map[string]api.Counted{}
			for i, m := range all {
				number := int64(first) + int64(i) //nolint:gosec // minutes since 1970
				require.Equal(t, number*60, m.Start)
				require.Greater(t, number, int64(after)) //nolint:gosec // as above
				require.Less(t, number, present, "it has ended")
				require.GreaterOrEqual(t, number, present-recent.MinutesKept)
				if len(m.Models) > 0 {
					got[m.Start] = m.Models
				}
			}
			expected := map[int64]map[string]api.Counted{}
			for at, models := range want {
				if at/60 > int64(after) && at/60 < present && at/60 >= present-recent.MinutesKept { //nolint:gosec // as above
					expected[at] = models
				}
			}
			require.Equal(t, expected, got)
			if len(all) == 0 {
				return after
			}
			return first + uint64(len(all)) - 1
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now += time.Duration(rapid.SampledFrom([]int{0, 1, 499, 3000, 40_000, 600_000}).Draw(t, "gap")) * time.Millisecond
			if rapid.Bool().Draw(t, "looks") {
				after = look(after)
				continue
			}
			q := ended(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model"), rapid.SampledFrom([]string{"ok", "late"}).Draw(t, "result"), now, time.Millisecond)
			r.Finished(q)
			at := q.Ended.Unix() / 60 * 60
			if want[at] == nil {
				want[at] = map[string]api.Counted{}
			}
			c := want[at][q.Model]
			c[0]++
			if q.InTime {
				c[1]++
			}
			want[at][q.Model] = c
		}
		look(0)
	})
}

// A machine's clock that is set loses no minute, and brings none twice: each is shown by the clock that is in force.
func TestMinutesWhileTheClockIsSet(t *testing.T) {
	for name, jump := range map[string]time.Duration{"back": -2 * time.Hour, "a little back": -90 * time.Second, "forth": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			jumped := time.Duration(0) // the clock, less what has really gone by
			wall := map[time.Time]time.Duration{}
			at := func(elapsed time.Duration) time.Time {
				now := start.Truncate(time.Minute).Add(elapsed + jumped)
				wall[now] = elapsed
				return now
			}
			r := recent.New(recent.Options{
				Window: window, Now: at(0), Elapsed: func(since, at time.Time) time.Duration { return wall[at] - wall[since] },
			})
			count := func(elapsed time.Duration) {
				q := ended("m", "ok", 0, time.Millisecond)
				q.Ended = at(elapsed)
				r.Finished(q)
			}
			count(10 * time.Second)
			before, first := r.Minutes(0, at(65*time.Second))
			require.Len(t, before, 1)
			jumped = jump
			count(70 * time.Second)
			count(130 * time.Second)
			now := at(185 * time.Second)
			all, second := r.Minutes(first, now)
			require.Equal(t, first+1, second, "who has the first minute gets those after it")
			require.Len(t, all, 2)
			for i, m := range all {
				require.Equal(t, map[string]api.Counted{"m": {1, 1}}, m.Models)
				age := now.Sub(time.Unix(m.Start, 0))
				require.InDelta(t, (125*time.Second - time.Duration(i)*time.Minute).Seconds(), age.Seconds(), 30, "it is as old as it is")
			}
			require.EqualValues(t, 1, r.Models(at(132 * time.Second))[0].Now.Requests)
			require.EqualValues(t, 3, r.Models(now)[0].Hour.Requests)
			require.Len(t, r.Slowest("m", at(130*time.Second)), 2, "of the last minute")
		})
	}
}

func TestWaysToEndAreBounded(t *testing.T) {
	r := recent.New(recent.Options{Window: window, Now: start})
	for i := range 10_000 {
		q := ended("m", "refused", 0, 0)
		q.Reason = fmt.Sprint(i)
		r.Finished(q)
	}
	got := r.Models(start)[0].Now
	require.Less(t, len(got.Outcomes), 40)
	require.Equal(t, api.OutcomeCount{Result: "refused", Reason: "other", Count: 10_000 - 32}, got.Outcomes[0])
}

// named counts how often it is asked.
type named struct{ asked *int }

func (n named) ID() string      { *n.asked++; return strings.Repeat("i", 1000) }
func (n named) TraceID() string { return "0af7" }

func TestTheSlowestOfTheLastMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := recent.New(recent.Options{Window: window, Now: start})
		var all []*recent.Request
		now := time.Duration(0)
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			now += time.Duration(rapid.SampledFrom([]int{0, 10, 1000, 20_000}).Draw(t, "gap")) * time.Millisecond
			all = append(all, ended("m", "ok", now, time.Duration(rapid.IntRange(1, 1e9).Draw(t, "latency"))))
			r.Finished(all[len(all)-1])
		}
		var want []float64
		for _, q := range all {
			if start.Add(now).Sub(q.Ended) <= time.Minute {
				want = append(want, q.Latency.Seconds())
			}
		}
		slices.Sort(want)
		slices.Reverse(want)
		var got []float64
		for _, q := range r.Slowest("m", start.Add(now)) {
			got = append(got, q.LatencySeconds)
		}
		if want = want[:min(len(want), recent.Slowest)]; !slices.Equal(want, got) {
			t.Fatalf("the slowest are %v, not %v", want, got)
		}
	})
}

func TestIdentitiesAreAskedOnlyOfTheSlowest(t *testing.T) {
	r, asked := recent.New(recent.Options{Window: window, Now: start}), 0
	for i := range 1000 {
		q := ended("m", "ok", 0, time.Second-time.Duration(i))
		q.Identity = named{&asked}
		r.Finished(q)
	}
	require.Equal(t, recent.Slowest, asked)
	slow := r.Slowest("m", start)
	require.Len(t, slow, recent.Slowest)
	require.Len(t, slow[0].ID, 256)
	require.Equal(t, "0af7", slow[0].TraceID)
	require.Empty(t, r.Slowest("other", start))

	q := ended("m", "ok", 0, time.Millisecond)
	q.Identity = named{&asked}
	require.Zero(t, testing.AllocsPerRun(1000, func() { r.Finished(q) }))
	require.Equal(t, recent.Slowest, asked)
}

func TestExecutionsAreThoseOfTheLastHalfMinuteEachOnce(t *testing.T) {
	r := recent.New(recent.Options{Window: window, Now: start})
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Millisecond) }
	for i := range 20_000 {
		r.Executed(recent.Execution{Model: "m", Partition: "p", Start: at(i), End: at(i + 1), Rows: i, Deadline: at(i + 5)})
	}
	all, first := r.Executions(0, at(20_000))
	require.Len(t, all, recent.ExecutionsKept)
	require.EqualValues(t, 20_000-recent.ExecutionsKept+1, first)
	require.Equal(t, 19_999, all[len(all)-1].Rows)
	require.Equal(t, api.Executed{Partition: "p", Model: "m", Start: 1_700_000_019.999, End: 1_700_000_020, Rows: 19_999, Deadline: 1_700_000_020.004}, all[len(all)-1])

	all, first = r.Executions(19_990, at(20_000))
	require.Len(t, all, 10)
	require.EqualValues(t, 19_991, first)
	require.Equal(t, 19_990, all[0].Rows)
	all, _ = r.Executions(0, at(20_000).Add(29*time.Second))
	require.Len(t, all, 1001)
	all, first = r.Executions(20_000, at(20_000))
	require.Empty(t, all)
	require.EqualValues(t, 20_001, first)
}

func TestManyAtOnce(t *testing.T) {
	r := recent.New(recent.Options{Window: window, Now: start})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 1000 {
				r.Finished(ended(fmt.Sprint("m", k%3), "ok", time.Duration(k)*time.Millisecond, time.Duration(i*k)))
				r.Executed(recent.Execution{Model: "m", End: start})
				if k%100 == 0 {
					r.Models(start)
					r.Slowest("m0", start)
					r.Executions(0, start)
				}
			}
		})
	}
	all.Wait()
	total := uint64(0)
	for _, m := range r.Models(start.Add(time.Second)) {
		total += m.Hour.Requests
	}
	require.EqualValues(t, 8000, total)
}

func BenchmarkFinished(b *testing.B) {
	r, q, asked := recent.New(recent.Options{Window: window, Now: start}), ended("m", "ok", 0, time.Millisecond), 0
	q.Identity = named{&asked}
	b.ReportAllocs()
	for b.Loop() {
		q.Ended = q.Ended.Add(time.Millisecond)
		r.Finished(q)
	}
}

func BenchmarkExecuted(b *testing.B) {
	r := recent.New(recent.Options{Window: window, Now: start})
	b.ReportAllocs()
	for b.Loop() {
		r.Executed(recent.Execution{Model: "m", Partition: "p", Start: start, End: start, Rows: 4, Requests: 4, Deadline: start})
	}
}
