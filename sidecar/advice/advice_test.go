// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advice_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/advice"
)

// window is five seconds of n equal GPUs.
func window(n int, requests, bad uint64, idle float64, spare ...string) advice.Window {
	w := advice.Window{Seconds: 5, Requests: requests, Bad: bad, Spare: spare}
	for i := range n {
		w.GPUs = append(w.GPUs, advice.GPU{ID: fmt.Sprintf("gpu%d", i), Rank: uint32(i), IdleShare: idle})
	}
	return w
}

// repeat judges the same window so many times.
func repeat(s advice.State, times int, w advice.Window) (advice.State, *policy.Advice) {
	var a *policy.Advice
	for range times {
		s, a = advice.Rule{}.Next(s, w)
	}
	return s, a
}

// TestSymphonysNumbers are those of section 3.5, in whole GPUs.
func TestSymphonysNumbers(t *testing.T) {
	for name, test := range map[string]struct {
		w                 advice.Window
		allocate, release float64
		reason            string
	}{
		"N*r/(1-r) is 2":            {w: window(8, 10_000, 2_000, 0), allocate: 2, reason: "allocate 2: 20.0% of the requests are bad on 8 GPUs, N*r/(1-r) = 2.0 more are wanted"},
		"a part is a whole GPU":     {w: window(8, 10_000, 300, 0), allocate: 1, reason: "allocate 1: 3.0%"},
		"nothing is good":           {w: window(3, 10_000, 10_000, 0), allocate: 3, reason: "allocate 3: 100.0%"},
		"N*f is 2":                  {w: window(8, 10_000, 0, .25), release: 2, reason: "release 2 (gpu7, gpu6): 8 GPUs idle for 25.0% of the time, with 0.0% bad"},
		"half of the tolerance":     {w: window(8, 10_000, 50, .25), release: 1, reason: "release 1 (gpu7): "},
		"at the tolerance":          {w: window(8, 10_000, 100, .25), reason: "hold: 1.0% of the requests are bad and the GPUs are idle for 25.0% of the time, which is 2.0 of 8 GPUs"},
		"less than a GPU":           {w: window(8, 10_000, 0, .12), reason: "hold: 0.0% of the requests are bad and the GPUs are idle for 12.0% of the time, which is 1.0 of 8 GPUs"},
		"one GPU stays":             {w: window(1, 10_000, 0, .99), reason: "hold: "},
		"within the noise":          {w: window(8, 200, 4, 0), reason: "hold: 2.0% of the requests are bad"},
		"noise keeps no GPU":        {w: window(8, 200, 2, .3), release: 2, reason: "release 2"},
		"beyond the noise":          {w: window(8, 200, 5, 0), allocate: 1, reason: "allocate 1"},
		"spare GPUs come first":     {w: window(8, 10_000, 2_000, 0, "gpu8", "gpu9"), reason: "hold: 20.0% of the requests are bad, and gpu8, gpu9 have no partition yet"},
		"and count":                 {w: window(8, 10_000, 3_000, 0, "gpu8"), allocate: 3, reason: "allocate 3"},
		"spare GPUs are given back": {w: window(2, 10_000, 0, .6, "gpu2"), release: 2, reason: "release 2 (gpu2, gpu1): 2 GPUs idle for 60.0% of the time, with 0.0% bad; gpu2 has no partition"},
	} {
		t.Run(name, func(t *testing.T) {
			_, a := repeat(advice.State{}, 12, test.w)
			require.Equal(t, test.allocate, a.GetAllocateGpus(), a.GetReason())
			require.Equal(t, test.release, a.GetReleaseGpus(), a.GetReason())
			require.Contains(t, a.GetReason(), test.reason)
			require.Len(t, a.GetRelease(), int(test.release))
			require.EqualValues(t, len(test.w.GPUs), a.GetGpus())
			require.Equal(t, test.w.Requests, a.GetRequests())
			require.Equal(t, 5.0, a.GetSeconds())
		})
	}
}

// TestItHasToLast: a shortage counts after ten seconds, a surplus after a minute, and what counts is the least of that time.
func TestItHasToLast(t *testing.T) {
	short, idle := window(8, 10_000, 2_000, 0), window(8, 10_000, 0, .5)
	s, a := repeat(advice.State{}, 1, short)
	require.Zero(t, a.GetAllocateGpus())
	require.Equal(t, "hold: 20.0% of the requests are bad on 8 GPUs for 5 s; counts once it has been so for 10 s", a.GetReason())
	s, a = repeat(s, 1, short)
	require.Equal(t, 2.0, a.GetAllocateGpus())
	s, a = repeat(s, 1, window(8, 10_000, 1_000, 0))
	require.Equal(t, 1.0, a.GetAllocateGpus(), "less counts at once")
	s, a = repeat(s, 1, idle)
	require.Zero(t, a.GetAllocateGpus(), "and so does the end of it")
	s, a = repeat(s, 10, idle)
	require.Zero(t, a.GetReleaseGpus())
	_, a = repeat(s, 1, idle)
	require.Equal(t, 4.0, a.GetReleaseGpus(), "a minute after it was short for the last time")

	s, _ = repeat(advice.State{}, 6, idle)
	s, _ = repeat(s, 1, window(8, 10_000, 0, .25))
	_, a = repeat(s, 5, idle)
	require.Equal(t, 2.0, a.GetReleaseGpus(), "a burst within the minute wants its GPUs")
}

// TestTooFewRequests: windows are joined until there are a hundred requests, for a minute at most.
func TestTooFewRequests(t *testing.T) {
	s, a := repeat(advice.State{}, 3, window(2, 30, 15, 0))
	require.Nil(t, a)
	s, a = repeat(s, 1, window(2, 30, 15, 0))
	require.EqualValues(t, 120, a.GetRequests())
	require.Equal(t, 20.0, a.GetSeconds())
	require.Equal(t, 2.0, a.GetAllocateGpus(), "twenty seconds is more than ten")
	_, a = repeat(s, 3, window(2, 30, 0, 0))
	require.Equal(t, 2.0, a.GetAllocateGpus(), "it stands while the next windows are joined")

	_, a = repeat(s, 12, window(2, 5, 5, 0))
	require.Nil(t, a)
	_, a = repeat(advice.State{}, 100, window(2, 0, 0, 1))
	require.Nil(t, a, "silence says nothing")
	_, a = repeat(advice.State{}, 100, advice.Window{Seconds: 5, Requests: 1000, Bad: 1000})
	require.Nil(t, a, "nothing serves")
}

// TestAnotherCluster: what was measured before GPUs came, went or failed does not count.
func TestAnotherCluster(t *testing.T) {
	s, _ := repeat(advice.State{}, 11, window(8, 10_000, 0, .5))
	s, a := repeat(s, 1, window(7, 10_000, 0, .5))
	require.Zero(t, a.GetReleaseGpus())
	_, a = repeat(s, 11, window(7, 10_000, 0, .5))
	require.Equal(t, 3.0, a.GetReleaseGpus())
}

// TestAShortageIsRemembered while the load stays: three GPUs were too few, and the fourth is not given back although the four idle for more than
// a GPU's time. Another load is another matter.
func TestAShortageIsRemembered(t *testing.T) {
	s, _ := repeat(advice.State{}, 2, window(3, 10_000, 500, .02))
	same, a := repeat(s, 24, window(4, 10_000, 0, .28))
	require.Zero(t, a.GetReleaseGpus())
	require.Contains(t, a.GetReason(), "which is 1.1 of 4 GPUs; 3 were too few for this load")
	_, a = repeat(s, 24, window(6, 10_000, 0, .5))
	require.Equal(t, 2.0, a.GetReleaseGpus(), "down to four")
	_, a = repeat(same, 12, window(4, 9_000, 0, .28))
	require.Equal(t, 1.0, a.GetReleaseGpus(), "a tenth less arrives")
	_, a = repeat(same, 12, window(4, 10_000, 0, .5))
	require.Equal(t, 2.0, a.GetReleaseGpus(), "as many arrive and take less")

	// It may have been a burst: after half an hour it is tried again, and where the same number is too few again, after an hour.
	idle := window(4, 10_000, 0, .28)
	const minute = 12
	s, a = repeat(same, 27*minute, idle)
	require.Zero(t, a.GetReleaseGpus())
	s, a = repeat(s, 3*minute, idle)
	require.Equal(t, 1.0, a.GetReleaseGpus())
	s, _ = repeat(s, 2, window(3, 10_000, 500, .02))
	s, a = repeat(s, 59*minute, idle)
	require.Zero(t, a.GetReleaseGpus())
	_, a = repeat(s, 3*minute, idle)
	require.Equal(t, 1.0, a.GetReleaseGpus())
}

// TestFollowed: a cluster that behaves as the paper says and follows the advice ends, from any number of GPUs, within one of what the load needs,
// and stays there.
func TestFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		each := rapid.Float64Range(20, 5000).Draw(t, "a GPU's goodput")
		offered := rapid.Float64Range(20, 50_000).Draw(t, "offered")
		// What idles in any case, because gathering a batch takes time.
		gaps := rapid.Float64Range(0, .15).Draw(t, "gaps")
		n := rapid.IntRange(1, 60).Draw(t, "GPUs")
		if offered/each > 60 {
			return
		}
		least, most := math.Ceil(.99*offered/each), math.Ceil(offered/each) // with the tolerated share bad, and with none
		var s advice.State
		var a *policy.Advice
		changes, last := 0, 0
		for at := range 300 {
			peak := float64(n) * each
			bad, idle := max(0, 1-peak/offered), max(0, 1-(1-gaps)*offered/peak)
			if bad > 0 {
				idle = 0
			}
			requests := uint64(5 * offered)
			s, a = advice.Rule{}.Next(s, window(n, requests, uint64(math.Round(bad*float64(requests))), idle))
			if d := int(a.GetAllocateGpus()) - int(a.GetReleaseGpus()); d != 0 {
				n, changes, last = n+d, changes+1, at
			}
		}
		require.GreaterOrEqual(t, float64(n), least-1, "%d changes", changes)
		require.LessOrEqual(t, float64(n), most+1, "%d changes", changes)
		require.Less(t, last, 200, "it is at rest after a while, with %d changes", changes)
	})
}

// TestInvariants hold whatever is measured.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s advice.State
		for range rapid.IntRange(1, 40).Draw(t, "windows") {
			requests := rapid.Uint64Range(0, 5000).Draw(t, "requests")
			w := window(rapid.IntRange(0, 5).Draw(t, "GPUs"), requests, rapid.Uint64Range(0, 6000).Draw(t, "bad"), rapid.Float64Range(-1, 2).Draw(t, "idle"),
				rapid.SliceOfNDistinct(rapid.StringMatching("s[0-9]"), 0, 3, rapid.ID).Draw(t, "spare")...)
			w.Seconds = rapid.Float64Range(0, 90).Draw(t, "seconds")
			before := s
			next, a := advice.Rule{}.Next(s, w)
			again, b := advice.Rule{}.Next(before, w)
			require.Equal(t, next, again, "it is a function")
			require.Equal(t, a.GetReason(), b.GetReason())
			s = next
			if a == nil {
				continue
			}
			require.NotEmpty(t, a.GetReason())
			require.False(t, a.GetAllocateGpus() > 0 && a.GetReleaseGpus() > 0)
			require.GreaterOrEqual(t, a.GetRequests(), uint64(100))
			require.Less(t, int(a.GetReleaseGpus()), len(w.GPUs)+len(w.Spare), "one GPU stays")
			require.Len(t, a.GetRelease(), int(a.GetReleaseGpus()))
			names := slices.Clone(a.GetRelease())
			slices.Sort(names)
			require.Equal(t, len(names), len(slices.Compact(names)))
		}
	})
}

// TestGPUs: partitions count by their shares, those that are down do not, and GPUs without one are spare.
func TestGPUs(t *testing.T) {
	nodes := []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "whole"}, {Id: "cut"}, {Id: "down"}, {Id: "gone", Unavailable: true}, {Id: "empty"}}}}
	p := &policy.Plan{Partitions: []*policy.Partition{
		{Id: "a", Gpus: []string{"whole"}, ThreadPercentage: 100, Rank: 2}, {Id: "b", Node: "n", Gpus: []string{"cut"}, ThreadPercentage: 75, Rank: 1},
		{Id: "c", Node: "n", Gpus: []string{"cut"}, ThreadPercentage: 25, Rank: 0}, {Id: "d", Gpus: []string{"down"}, ThreadPercentage: 100}, {Id: "e", Gpus: []string{"gone"}, ThreadPercentage: 100},
	}}
	measured := []*policy.PartitionStatistics{
		{Partition: "a", Up: true, IdleShare: .5}, {Partition: "b", Up: true, IdleShare: .8}, {Partition: "c", Up: true}, {Partition: "d", IdleShare: 1}, {Partition: "e", Up: true},
	}
	serving, spare := advice.GPUs(nodes, p, measured)
	require.Equal(t, []string{"empty"}, spare)
	require.Len(t, serving, 2)
	require.Equal(t, advice.GPU{ID: "whole", Rank: 2, IdleShare: .5}, serving[0])
	require.Equal(t, "cut", serving[1].ID)
	require.InDelta(t, .6, serving[1].IdleShare, 1e-9)
	require.Zero(t, serving[1].Rank)

	serving, spare = advice.GPUs(append(nodes, &policy.Node{Name: "m", Gpus: []*policy.GPU{{Id: "whole"}}}), p, measured)
	require.Equal(t, "n/whole", serving[0].ID, "on several machines the machine's name belongs to it")
	require.Equal(t, []string{"n/empty"}, spare, "a partition without a node is on any")

	_, spare = advice.GPUs([]*policy.Node{{Name: "g", Gpus: []*policy.GPU{{Id: "gpu-0"}}}, {Name: "n", Gpus: []*policy.GPU{{Id: "n.gpu-0"}}}}, nil, nil)
	require.Equal(t, []string{"g/gpu-0", "n.gpu-0"}, spare, "in a cluster the machine's name is in that of the GPU")
}

// What an autoscaler of nodes is told: by type, and nothing while there is no advice.
func TestGPUsWantedByType(t *testing.T) {
	nodes := []*policy.Node{
		{Name: "n1", Gpus: []*policy.GPU{{Id: "a", Type: "A100"}, {Id: "b", Type: "A100"}}},
		{Name: "n2", Gpus: []*policy.GPU{{Id: "c", Type: "T4"}, {Id: "d", Type: "T4"}, {Id: "broken", Type: "T4", Unavailable: true}}},
	}
	w := advice.Window{GPUs: []advice.GPU{{ID: "n1/a"}, {ID: "n1/b"}, {ID: "n2/c"}}, Spare: []string{"n2/d"}}
	require.Nil(t, advice.Wanted(nil, nodes, w))
	require.Equal(t, map[string]int{"A100": 2, "T4": 2}, advice.Wanted(&policy.Advice{}, nodes, w), "as many as there are")
	require.Equal(t, map[string]int{"A100": 5, "T4": 2}, advice.Wanted(&policy.Advice{AllocateGpus: 3}, nodes, w), "of the type of which most serve")
	require.Equal(t, map[string]int{"A100": 2, "T4": 0}, advice.Wanted(&policy.Advice{ReleaseGpus: 2, Release: []string{"n2/d", "n2/c"}}, nodes, w))
	w.GPUs = w.GPUs[1:]
	require.Equal(t, map[string]int{"A100": 2, "T4": 2}, advice.Wanted(&policy.Advice{AllocateGpus: 1}, nodes, w), "of two alike the first")
	one := []*policy.Node{{Name: "n1", Gpus: []*policy.GPU{{Id: "a", Type: "A100"}}}}
	require.Equal(t, map[string]int{"A100": 2}, advice.Wanted(&policy.Advice{AllocateGpus: 1}, one, advice.Window{GPUs: []advice.GPU{{ID: "a"}}}))
}
