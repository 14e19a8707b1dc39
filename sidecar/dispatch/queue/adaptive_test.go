// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// TestAdaptiveRule checks the rule on its own: at 50, for a batch of 3 rows that
// would start at 100 under deferred, on 8 partitions, with l(reach) = 20.
func TestAdaptiveRule(t *testing.T) {
	for _, c := range []struct {
		name string
		idle string
		p    queue.Pressure
		want queue.Time
	}{
		{"evenly staggered: as deferred", "", queue.Pressure{Need: 8, AllNeed: 8, Left: 4}, 101},
		{"partitions are ahead by a quarter of a batch", "", queue.Pressure{Need: 8, AllNeed: 8, Left: 2}, 96},
		{"nothing runs", "", queue.Pressure{Need: 8, AllNeed: 8}, 91},
		{"partitions are behind: the exec comes first", "", queue.Pressure{Need: 8, AllNeed: 8, Left: 8}, 111},
		{"they go on while it waits", "", queue.Pressure{Need: 8, AllNeed: 8, Left: 4, Ebb: .4}, 76},
		{"a model without two partitions to itself", "", queue.Pressure{Need: 1, AllNeed: 8, Left: 4}, 50},
		{"nor with its share of them", "", queue.Pressure{Need: 2, AllNeed: 16, Left: 4}, 50},
		{"half of the load does not wait", "", queue.Pressure{Need: 4, AllNeed: 8, Crowd: 4, Left: 4}, 91},
		{"arrivals in bursts", "", queue.Pressure{Need: 8, AllNeed: 8, Left: 4, Dispersion: 5}, 95},
		{"in short ones", "", queue.Pressure{Need: 8, AllNeed: 8, Left: 4, Dispersion: 4}, 101},
		{"a burst that goes on", "", queue.Pressure{Need: 1, AllNeed: 8, Left: 4, Dispersion: 20, Newest: 50, Alone: 100, Saved: 1}, 55},
		{"a burst that may be chance", "", queue.Pressure{Need: 1, AllNeed: 8, Left: 4, Dispersion: 3, Newest: 50, Alone: 100, Saved: 1}, 52},
		{"a burst whose rows gain little by company", "", queue.Pressure{Need: 1, AllNeed: 8, Left: 4, Dispersion: 20, Newest: 50, Alone: 100, Saved: .5}, 51},
		{"a burst that is over", "", queue.Pressure{Need: 1, AllNeed: 8, Left: 4, Dispersion: 20, Newest: 44, Alone: 100, Saved: 1}, 50},
		{"the first of a burst under low load", "", queue.Pressure{Free: 8, Dispersion: 20, Newest: 50, Alone: 100, Saved: 1}, 55},
		{"its rate is not known yet", "", queue.Pressure{AllNeed: 8, Left: 4}, 101},
		{"large enough", "", queue.Pressure{Need: 8, AllNeed: 8, Left: 4, Worth: 3}, 50},
		{"nobody to stagger with", "", queue.Pressure{Need: 8, AllNeed: 8, Left: .5, Usable: 1}, 50},
		{"low load that asks for a fourth partition", "", queue.Pressure{Need: 3.2, AllNeed: 3.2, Left: 4, Free: 5}, 50},
		{"low load that does not", "", queue.Pressure{Need: 3, AllNeed: 3, Free: 5}, queue.Never},
		{"a lone request", "", queue.Pressure{Free: 8}, 50},
		{"load is never low", "1", queue.Pressure{Need: 3, AllNeed: 3, Left: 4, Free: 5}, 101},
		{"load is low while one is free", "0", queue.Pressure{Need: 8, AllNeed: 7, Worth: 3}, queue.Never},
	} {
		if c.p.Usable == 0 {
			c.p.Usable = 8
		}
		if c.p.Free == 0 {
			c.p.Free = 1
		}
		if c.p.Worth == 0 {
			c.p.Worth = 4
		}
		c.p.Reach = 20
		var params map[string]string
		if c.idle != "" {
			params = map[string]string{"idle": c.idle}
		}
		d, err := queue.NewDiscipline("adaptive", params)
		require.NoError(t, err)
		got := d.(queue.Hurrier).Hurry(50, &queue.Candidate{Rows: 3, Frontrun: 100, Latest: 101}, c.p)
		require.Equal(t, c.want, got, c.name)
	}
}

// TestLowLoadStaysOnOnePartition: a lone request does not wait, and the next
// one does not take a second partition as long as it can wait for the first.
func TestLowLoadStaysOnOnePartition(t *testing.T) {
	f := newFixture(t)
	m := f.model("adaptive", "reserve", queue.LateDrop, linear)
	low := f.partition(0, 0, m)
	f.partition(1, 0, m)
	f.partition(2, 0, m)
	f.enqueue(0, m, 1) // so that the rate is known
	f.Complete(6, low)
	now := queue.Time(100)
	for range 10 {
		f.enqueue(now, m, 1)
		require.Equal(t, now, f.last().Start, "at once")
		f.enqueue(now+4, m, 1)
		require.Equal(t, now, f.last().Start, "the second waits")
		f.Complete(now+6, low)
		require.Equal(t, now+6, f.last().Start, "for the first")
		require.True(t, f.last().Hurried)
		require.Equal(t, low, f.last().Partition)
		f.Complete(now+12, low)
		now += 100
	}
	f.enqueue(now, m, 1)
	f.enqueue(now+1, m, 1)
	require.Equal(t, now, f.last().Start)
	f.Advance(now + 13 - 7) // it does not end in time
	require.Equal(t, now+6, f.last().Start, "d - l(2): the second partition is opened for the deadline")
	require.NotEqual(t, low, f.last().Partition)
	require.Empty(t, f.dropped)
}

// TestAdaptiveSize checks how many rows a batch has at most, of 64, on 8
// partitions that are shared with requests whose SLO is 40 ms on average.
func TestAdaptiveSize(t *testing.T) {
	const ms = 1e6
	strong := queue.Linear(1*ms, 15*ms, 64) // 15 of 16 ms saved by company
	weak := queue.Linear(7.353*ms, .222*ms, 64)
	heavy := queue.Linear(23*ms, 15*ms, 64)
	d, err := queue.NewDiscipline("adaptive", nil)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		d    queue.Demand
		want int
	}{
		{"rows gain much by company: as many as the SLO allows", queue.Demand{Table: strong, SLO: 60 * ms, Dispersion: 1, Load: .9}, 45},
		{"even in bursts", queue.Demand{Table: strong, SLO: 60 * ms, Dispersion: 10, Load: .9}, 45},
		{"they gain little", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 1, Load: .9}, 3},
		{"more is to spare", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 1, Load: .3}, 1},
		{"others would wait for a burst", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 10, Load: .9}, 1},
		{"less long for one of many partitions", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 10, Load: .9, Partitions: 64}, 2},
		{"a burst that takes all the partitions", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 100, Load: .9}, 64},
		{"small batches would take too long for others as well", queue.Demand{Table: queue.Linear(40*ms, 28*ms, 64), SLO: 378 * ms, Dispersion: 10, Load: .5}, 64},
		{"others can wait for one of its rows, and no longer", queue.Demand{Table: heavy, SLO: 420 * ms, Dispersion: 10, Load: .9, Around: 60 * ms}, 1},
		{"but there is no time to lose", queue.Demand{Table: heavy, SLO: 420 * ms, Dispersion: 1, Load: 1, Around: 60 * ms}, 9},
		{"nor for a burst", queue.Demand{Table: heavy, SLO: 420 * ms, Dispersion: 100, Load: 1, Around: 60 * ms}, 64},
		{"and one of many partitions is soon free", queue.Demand{Table: heavy, SLO: 420 * ms, Dispersion: 10, Load: .9, Around: 60 * ms, Partitions: 64}, 6},
		{"others who have time", queue.Demand{Table: weak, SLO: 59 * ms, Dispersion: 1, Load: .9, Around: 4000 * ms}, 7},
	} {
		c.d.MaxBatch, c.d.Rate = 64, 100
		if c.d.Partitions == 0 {
			c.d.Partitions = 8
		}
		if c.d.Around == 0 {
			c.d.Around = 40 * ms
		}
		require.Equal(t, c.want, d.(queue.Sizer).Most(c.d), c.name)
		c.d.Rate = 0
		require.Equal(t, 64, d.(queue.Sizer).Most(c.d), "%s, while no rate is known", c.name)
	}
}
