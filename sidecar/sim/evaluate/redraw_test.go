// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// requests counts the arrivals of a name in a span.
func requests(t *evaluate.Traffic, model int32, from, to time.Duration) (n int) {
	for _, a := range t.Arrivals {
		if a.Model == model && a.At >= from && a.At < to {
			n++
		}
	}
	return n
}

func redrawn(t *testing.T, s *policy.Snapshot, of *evaluate.Traffic, draw uint32) *evaluate.Traffic {
	t.Helper()
	other, err := evaluate.Redraw(s, of, draw)
	require.NoError(t, err)
	again, err := evaluate.Redraw(s, of, draw)
	require.NoError(t, err)
	require.Equal(t, other, again, "equal draws are equal arrivals")
	require.Equal(t, of.Length, other.Length)
	require.Equal(t, of.Names, other.Names)
	require.NotEqual(t, of.Describe().GetDigest(), other.Describe().GetDigest())
	require.True(t, slices.IsSortedFunc(other.Arrivals, func(a, b workload.Arrival) int { return int(a.At - b.At) }))
	for _, a := range other.Arrivals {
		require.True(t, a.At >= 0 && a.At < of.Length)
	}
	return other
}

// What was generated is drawn anew at the same rates.
func TestGeneratedTrafficIsDrawnAnew(t *testing.T) {
	s := &policy.Snapshot{Seed: 3, Models: []*policy.Model{{Name: "a", Rate: 400, RowRate: 400, Burstiness: 1}, {Name: "b", Rate: 100, RowRate: 100, Burstiness: 1}}}
	of, err := evaluate.Generate(s, 10*time.Second)
	require.NoError(t, err)
	first, second := redrawn(t, s, of, 1), redrawn(t, s, of, 2)
	require.NotEqual(t, first.Arrivals, second.Arrivals)
	for _, other := range []*evaluate.Traffic{first, second} {
		require.InDelta(t, 4000, requests(other, 0, 0, other.Length), 300, "four standard deviations and more")
		require.InDelta(t, 1000, requests(other, 1, 0, other.Length), 150)
	}
}

// recorded is a second in which only a is asked for, often, and nine in which only b is, evenly.
func recorded() *evaluate.Traffic {
	t := &evaluate.Traffic{Names: []string{"a", "b"}, Length: 10 * time.Second, Source: evaluate.SourceRecorded}
	for i := range 1000 {
		t.Arrivals = append(t.Arrivals, workload.Arrival{At: time.Duration(i) * time.Millisecond, Rows: 1})
	}
	for i := range 900 {
		t.Arrivals = append(t.Arrivals, workload.Arrival{At: time.Second + time.Duration(i)*10*time.Millisecond, Model: 1, Rows: 2})
	}
	return t
}

// Bursts stay what they are and come elsewhere, twice or not at all, for each name apart; on average there is as much as there was.
func TestARecordingIsPutTogetherFromItsPieces(t *testing.T) {
	s, of := &policy.Snapshot{Seed: 5}, recorded()
	counts := map[int]int{}
	sum, together := 0, 0
	const draws = 300
	for draw := uint32(1); draw <= draws; draw++ {
		other := redrawn(t, s, of, draw)
		n := requests(other, 0, 0, other.Length)
		counts[min(3, n/900)]++
		sum += n
		for at := time.Duration(0); at < other.Length; at += 500 * time.Millisecond {
			if a, b := requests(other, 0, at, at+500*time.Millisecond), requests(other, 1, at, at+500*time.Millisecond); a > 300 && b > 30 {
				together++
			}
		}
		for _, a := range other.Arrivals {
			require.EqualValues(t, a.Model+1, a.Rows)
		}
	}
	require.Greater(t, counts[0], draws/10)
	require.Greater(t, counts[1]+counts[2], draws/3)
	require.Greater(t, counts[3], draws/50)
	require.InEpsilon(t, 1000*draws, sum, .25)
	require.Greater(t, together, draws/10, "the two never met in the recording")
}

// The next piece differs from the mean of those that were recorded by more than these differ from each other.
func TestPiecesDifferByMoreThanTheyDid(t *testing.T) {
	s := &policy.Snapshot{Seed: 5}
	of := &evaluate.Traffic{Names: []string{"a"}, Length: 3 * time.Second, Source: evaluate.SourceRecorded}
	for second, n := range []int{800, 1000, 1200} {
		for i := range n {
			of.Arrivals = append(of.Arrivals, workload.Arrival{At: time.Duration(second)*time.Second + time.Duration(i)*time.Second/time.Duration(n), Rows: 1})
		}
	}
	least, most := 1<<20, 0
	for draw := uint32(1); draw <= 200; draw++ {
		other := redrawn(t, s, of, draw)
		for at := time.Duration(0); at < of.Length; at += time.Second {
			n := requests(other, 0, at, at+time.Second)
			least, most = min(least, n), max(most, n)
		}
	}
	require.InDelta(t, 1000-200*1.41, least, 30)
	require.InDelta(t, 1000+200*1.41, most, 30)
}

// Where the snapshot knows rates of past minutes, what comes has rates like theirs: each piece of a recording, and a generated traffic as a whole.
func TestDrawsHaveRatesLikePastMinutes(t *testing.T) {
	s := &policy.Snapshot{
		Seed: 7, Models: []*policy.Model{{Name: "b", Rate: 90, RowRate: 180, Burstiness: 1}},
		History: []*policy.ModelHistory{{Model: "b", Rates: []float64{90, 90, 360, 90}}},
	}
	generated, err := evaluate.Generate(s, 10*time.Second)
	require.NoError(t, err)
	for _, test := range []struct {
		of   *evaluate.Traffic
		span time.Duration
	}{{recorded(), time.Second}, {generated, 10 * time.Second}} {
		b := int32(slices.Index(test.of.Names, "b"))
		kinds := map[string]int{}
		for draw := uint32(1); draw <= 60; draw++ {
			other := redrawn(t, s, test.of, draw)
			for at := time.Duration(0); at < other.Length; at += test.span {
				switch rate := float64(requests(other, b, at, at+test.span)) / test.span.Seconds(); {
				case rate < 55:
					kinds["fewer"]++
				case rate < 170:
					kinds["as mostly"]++
				default:
					kinds["as in the burst"]++
				}
			}
		}
		all := kinds["fewer"] + kinds["as mostly"] + kinds["as in the burst"]
		for _, kind := range []string{"fewer", "as mostly", "as in the burst"} {
			require.Greater(t, kinds[kind], all/8, "%s of %s: %v", kind, test.of.Source, kinds)
		}
	}
}

// A recording of few pieces is a draw of more where past minutes say what these may have: a draw of three minutes tells plans apart by chance.
func TestDrawsOfShortRecordingsAreLonger(t *testing.T) {
	of := recorded()
	of.Length = 3 * time.Second
	of.Arrivals = slices.DeleteFunc(of.Arrivals, func(a workload.Arrival) bool { return a.At >= of.Length })
	s := &policy.Snapshot{Seed: 7, History: []*policy.ModelHistory{{Model: "b", Rates: []float64{66, 66, 66}}}}
	other, err := evaluate.Redraw(s, of, 1)
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, other.Length)
	require.InEpsilon(t, 660, requests(other, 1, 0, other.Length), .35, "at the rate of the past minutes")
	require.Positive(t, requests(other, 1, 9*time.Second, other.Length), "until the end")
}

// A burst that the recording has nothing of comes as large as a past minute had it, over the whole piece.
func TestBurstsOfPastMinutesComeInFull(t *testing.T) {
	s := &policy.Snapshot{Seed: 7, History: []*policy.ModelHistory{{Model: "b", Rates: []float64{3000, 100, 100, 100, 100, 100, 100, 100, 100, 100}}}}
	bursts := 0
	for draw := uint32(1); draw <= 40; draw++ {
		other := redrawn(t, s, recorded(), draw)
		for at := time.Duration(0); at < other.Length; at += time.Second {
			if first, rest := requests(other, 1, at, at+500*time.Millisecond), requests(other, 1, at+500*time.Millisecond, at+time.Second); first > 1000 && rest > 1000 {
				require.InDelta(t, 3000, first+rest, 900)
				bursts++
			}
		}
	}
	require.Greater(t, bursts, 10)
}

// What becomes more than the largest traffic is shorter, as what is generated is: its goodput would be that of a time in which nothing arrives any more.
func TestTooMuchIsShorter(t *testing.T) {
	s := &policy.Snapshot{Seed: 1}
	of := &evaluate.Traffic{Length: 10 * time.Second, Source: evaluate.SourceRecorded}
	for i := range int32(4) {
		name := string('a' + i)
		of.Names = append(of.Names, name)
		s.History = append(s.History, &policy.ModelHistory{Model: name, Rates: []float64{60_000, 60_000}})
	}
	for i := range 100_000 * 4 {
		of.Arrivals = append(of.Arrivals, workload.Arrival{At: time.Duration(i) * 25 * time.Microsecond, Model: int32(i % 4), Rows: 1})
	}
	other, err := evaluate.Redraw(s, of, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, len(other.Arrivals), evaluate.MaxRequests)
	require.InDelta(t, 240_000, float64(len(other.Arrivals))/other.Length.Seconds(), 5_000)
	for i := range int32(4) {
		last := other.Length - 100*time.Millisecond
		require.InDelta(t, 6000, requests(other, i, last, other.Length), 300, "everybody's are there until the end")
	}
	require.Less(t, other.Arrivals[len(other.Arrivals)-1].At, other.Length)
}
