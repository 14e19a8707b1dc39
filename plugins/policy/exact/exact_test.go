// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/exact"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// of makes a world of units of 100 requests per second, up to four a model.
func of(t require.TestingT, b packtest.Builder) *exact.World {
	w, err := exact.New(b.Snapshot, exact.Options{Unit: 100, Most: 4})
	require.NoError(t, err)
	return w
}

func schedulable(t require.TestingT, w *exact.World, rates map[string]float64) bool {
	load, err := w.Load(rates)
	require.NoError(t, err)
	ok := w.Schedulable(load)
	s, found := w.Find(load)
	require.Equal(t, ok, found)
	if found {
		require.NoError(t, w.Check(s, rates))
		require.False(t, w.Impossible(load), "what a schedule carries is not impossible")
	}
	return ok
}

// small is a world with one GPU of little memory use, so that memory does not bind.
func small(gpus int) packtest.Builder {
	b := packtest.World(gpus)
	for _, g := range b.Nodes[0].GetGpus() {
		g.MemoryBytes = 1 << 40
	}
	return b
}

// TestOneModelAlone: a batch of b rows takes b + 10 ms on a whole GPU. Twice that has to fit into 44 ms, so that b is 12, and 12 rows every 22 ms are
// 545 a second; 13 rows would wait and run for 46 ms. On 20%, where it takes five times as long, not even one row fits.
func TestOneModelAlone(t *testing.T) {
	b := small(1).Line("a", 1, 10, 44, 0)
	w, err := exact.New(b.Snapshot, exact.Options{Unit: 545, Most: 1})
	require.NoError(t, err)
	require.True(t, schedulable(t, w, map[string]float64{"a": 545}))
	w, err = exact.New(b.Snapshot, exact.Options{Unit: 546, Most: 1})
	require.NoError(t, err)
	require.False(t, schedulable(t, w, map[string]float64{"a": 546}))
}

// TestInTime: two models take turns. a runs 1 row in 5 ms, b 1 row in 5 ms, the round is 10 ms, and 15 ms are within the SLO: 100 rows a second
// of each. With an SLO of 14 ms they do not fit, and neither does a third model in 15 ms.
func TestInTime(t *testing.T) {
	flat := func(slo float64, names ...string) packtest.Builder {
		b := small(1)
		for _, name := range names {
			b = b.Line(name, 5, 0, slo, 0)
		}
		return b
	}
	both := map[string]float64{"a": 100, "b": 100}
	require.True(t, schedulable(t, of(t, flat(15, "a", "b")), both))
	require.False(t, schedulable(t, of(t, flat(14, "a", "b")), both))
	require.False(t, schedulable(t, of(t, flat(15, "a", "b", "c")), map[string]float64{"a": 100, "b": 100, "c": 100}))
}

// TestInSpace: the heavy one runs for 40 ms, which the tight one cannot wait for; but neither needs more than half of a GPU. What they do to each
// other's latency beside each other counts: with the coefficients of interference, the tight one misses its SLO by a little.
func TestInSpace(t *testing.T) {
	b := small(1).Shaped("tight", 0, 5, 10.2, 0, 50).Shaped("heavy", 0, 40, 100, 0, 50)
	rates := map[string]float64{"tight": 100, "heavy": 100}
	require.True(t, schedulable(t, of(t, b), rates))
	undivided, err := exact.New(b.Snapshot, exact.Options{Unit: 100, Most: 4, Parts: 1})
	require.NoError(t, err)
	require.False(t, schedulable(t, undivided, rates), "in time alone they do not fit")
	require.False(t, schedulable(t, of(t, b.Interfering()), rates))
}

// TestReplicas: 32 rows take 40 ms of the 80 ms that the SLO allows, so that a GPU carries 800 rows a second; twice as many take two.
func TestReplicas(t *testing.T) {
	options := exact.Options{Unit: 400, Most: 4}
	for gpus, want := range map[int]bool{1: false, 2: true} {
		w, err := exact.New(small(gpus).Line("a", 1, 8, 80, 0).Snapshot, options)
		require.NoError(t, err)
		require.True(t, schedulable(t, w, map[string]float64{"a": 800}))
		require.Equal(t, want, schedulable(t, w, map[string]float64{"a": 1600}), "%d GPUs", gpus)
	}
}

// TestHoldsOnThePlansOwnPartitions: a plan holds on its partitions alone, by its own division of rates or by one in units.
func TestHoldsOnThePlansOwnPartitions(t *testing.T) {
	w := of(t, small(1).Shaped("tight", 0, 5, 10.2, 0, 50).Shaped("heavy", 0, 40, 100, 0, 50))
	rates := map[string]float64{"tight": 100, "heavy": 100}
	part := func(share uint32, instances ...*policy.Instance) *policy.Partition {
		return &policy.Partition{Id: strconv.FormatUint(uint64(share), 10), Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: share, Instances: instances}
	}
	in := policy.ModelInstance
	for name, c := range map[string]struct {
		parts []*policy.Partition
		want  bool
	}{
		"one for both":             {[]*policy.Partition{part(100, in("tight", 0), in("heavy", 0))}, false},
		"halves":                   {[]*policy.Partition{part(50, in("tight", 0)), part(50, in("heavy", 0))}, true},
		"both on both":             {[]*policy.Partition{part(50, in("tight", 0), in("heavy", 0)), part(50, in("tight", 0), in("heavy", 0))}, true},
		"55% count as 50%":         {[]*policy.Partition{part(55, in("tight", 0)), part(45, in("heavy", 0))}, true},
		"too small for the tight":  {[]*policy.Partition{part(40, in("tight", 0)), part(60, in("heavy", 0))}, false},
		"more than there is":       {[]*policy.Partition{part(60, in("tight", 0)), part(60, in("heavy", 0))}, false},
		"one of them has no place": {[]*policy.Partition{part(50, in("tight", 0))}, false},
	} {
		got, err := w.Holds(&policy.Plan{Partitions: c.parts}, rates)
		require.NoError(t, err)
		require.Equal(t, c.want, got, name)
	}
}

// TestKeepsWhatItPromises: 150 and 50 of 200 a second are no whole units, and hold; 200 on one half do not.
func TestKeepsWhatItPromises(t *testing.T) {
	w := of(t, small(1).Shaped("a", 5, 0, 11, 0, 50))
	promise := func(rates ...float64) *policy.Plan {
		p := &policy.Plan{}
		for i, rate := range rates {
			p.Partitions = append(p.Partitions, &policy.Partition{
				Id: strconv.Itoa(i), Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 50, Instances: []*policy.Instance{{Model: "a", Rate: rate}},
			})
		}
		return p
	}
	rates := map[string]float64{"a": 200}
	require.True(t, w.Keeps(promise(150, 50), rates))
	require.False(t, w.Keeps(promise(100, 50), rates), "it promises less")
	require.False(t, w.Keeps(promise(0, 250), rates), "a row every 5 ms is 200 a second")
	require.False(t, w.Keeps(promise(0, 0), rates), "it promises nothing")
	holds, err := w.Holds(promise(0, 0), rates)
	require.NoError(t, err)
	require.True(t, holds)
}

// TestHostSaysWhatIsCarried: of 200 heavy requests per second half of the GPU carries 100 beside the tight ones.
func TestHostSaysWhatIsCarried(t *testing.T) {
	b := small(1).Shaped("tight", 0, 5, 10.2, 100, 50).Shaped("heavy", 8, 32, 100, 300, 50)
	w := of(t, b)
	h, err := w.Host(b.Snapshot, nil)
	require.NoError(t, err)
	plan := &policy.Plan{Partitions: []*policy.Partition{
		{Id: "l", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 50, Instances: []*policy.Instance{{Model: "tight"}}},
		{Id: "r", Node: "n", Gpus: []string{"gpu0"}, ThreadPercentage: 50, Instances: []*policy.Instance{{Model: "heavy"}}},
	}}
	all, err := h.Evaluate(t.Context(), plan)
	require.NoError(t, err)
	o := all[0]
	require.InDelta(t, 100, o.GetModels()[0].GetGoodput(), 1e-9)
	require.Zero(t, o.GetModels()[0].GetBadRate())
	// Batches of 2 rows take 48 ms: 42 a second, and no batch carries 100.
	require.InDelta(t, 1, o.GetModels()[1].GetBadRate(), 1e-9)
	require.InDelta(t, 100, o.GetGoodput(), 1e-9)
	require.InDelta(t, .75, o.GetBadRate(), 1e-9)
	require.Len(t, o.GetPartitions(), 1)
	require.InDelta(t, .5, o.GetPartitions()[0].GetBusyShare(), 1e-9)
	require.EqualValues(t, 1, o.GetGpus())

	h, err = w.Host(b.Snapshot, func(*policy.Plan) []string { return []string{"no"} })
	require.NoError(t, err)
	all, err = h.Evaluate(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, []string{"no"}, all[0].GetViolations())
}

// TestSteps: nine light models that are alike have more maximal loads than can be added up in a minute. The search ends where its budget does, and
// then has found nothing, and proven nothing. In a small world the same budget suffices.
func TestSteps(t *testing.T) {
	const budget = 1 << 20
	b, rates, units := small(4), map[string]float64{}, map[string]float64{}
	for i := range 9 {
		name := fmt.Sprint("m", i)
		b = b.Line(name, 1, .1, 200, 0)
		rates[name] = 300 + 6*float64(i)
		units[name] = rates[name] / 4
	}
	w, err := exact.New(b.Snapshot, exact.Options{Unit: 1, Units: units, Most: 4, Steps: budget})
	require.NoError(t, err)
	asked, err := w.Load(rates)
	require.NoError(t, err)
	_, ok := w.Find(asked)
	require.False(t, ok)
	require.False(t, w.Schedulable(asked))
	require.False(t, w.Impossible(asked), "who gave up has proven nothing")

	w, err = exact.New(small(4).Line("m", 1, .1, 200, 0).Snapshot, exact.Options{Unit: 75, Most: 4, Steps: budget})
	require.NoError(t, err)
	require.True(t, schedulable(t, w, map[string]float64{"m": 300}))
}

func TestNewSaysWhatItCannotSearch(t *testing.T) {
	good := exact.Options{Unit: 1, Most: 1}
	for name, c := range map[string]struct {
		spoil   func(*policy.Snapshot)
		options exact.Options
		say     string
	}{
		"no unit":       {nil, exact.Options{Most: 1}, "a unit of 0"},
		"too many":      {nil, exact.Options{Unit: 1, Most: 16}, "at most 16 a model"},
		"sizes":         {nil, exact.Options{Unit: 1, Most: 1, Sizes: []uint32{10}}, "do not ascend from 20"},
		"parts":         {nil, exact.Options{Unit: 1, Most: 1, Parts: 6}, "6 partitions"},
		"memory":        {func(s *policy.Snapshot) { s.Models[0].MemoryBytes = 1 << 40 }, good, "does not weigh memory"},
		"types":         {func(s *policy.Snapshot) { s.Nodes[0].Gpus[1].Type = "Y" }, good, "one type"},
		"no GPU":        {func(s *policy.Snapshot) { s.Nodes = nil }, good, "0 GPUs"},
		"no model":      {func(s *policy.Snapshot) { s.Models = nil }, good, "0 models"},
		"no SLO":        {func(s *policy.Snapshot) { s.Models[0].SloUs = 0 }, good, "needs an SLO"},
		"no profile":    {func(s *policy.Snapshot) { s.Profiles = nil }, good, "usable profile"},
		"constraints":   {func(s *policy.Snapshot) { s.Constraints = []*policy.Constraint{{Model: "a"}} }, good, "constraints"},
		"huge batches":  {func(s *policy.Snapshot) { s.Models[0].MaxBatchSize = 1 << 20 }, good, "up to 1024"},
		"no number":     {func(s *policy.Snapshot) { s.Profiles[0].Points[0].LatencyUpperUs = math.NaN() }, good, "finite"},
		"twice a model": {func(s *policy.Snapshot) { s.Models = append(s.Models, proto.CloneOf(s.Models[0])) }, good, "two models"},
	} {
		s := proto.CloneOf(small(2).Line("a", 1, 1, 10, 0).Snapshot)
		if c.spoil != nil {
			c.spoil(s)
		}
		_, err := exact.New(s, c.options)
		require.ErrorIs(t, err, exact.ErrWorld, name)
		require.ErrorContains(t, err, c.say, name)
	}
	w := of(t, small(1).Line("a", 1, 1, 10, 0))
	_, err := w.Load(map[string]float64{"b": 1})
	require.ErrorContains(t, err, "no model b")
	_, err = w.Load(map[string]float64{"a": 401})
	require.ErrorContains(t, err, "more than 4 units")
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	w := of(t, small(1).Line("a", 5, 0, 15, 0).Line("b", 5, 0, 15, 0))
	part := func(size uint32, round float64, turns ...exact.Turn) exact.Schedule {
		return exact.Schedule{{{Size: size, Round: round, Turns: turns}}}
	}
	a, b := exact.Turn{Model: "a", Rate: 100, Batch: 1}, exact.Turn{Model: "b", Rate: 100, Batch: 1}
	rates := map[string]float64{"a": 100}
	require.NoError(t, w.Check(part(100, 10_000, a, b), rates))
	for say, s := range map[string]exact.Schedule{
		"gets 0 of 100":       part(100, 10_000, b),
		"partition of 30%":    part(30, 10_000, a),
		"two turns":           part(100, 10_000, a, a),
		"no batch of 64 rows": part(100, 10_000, exact.Turn{Model: "a", Rate: 100, Batch: 64}),
		"its SLO is":          part(100, 10_001, a, b),
		"do not fit into":     part(100, 10_000, exact.Turn{Model: "a", Rate: 101, Batch: 1}),
		"of a round of":       part(100, 9_000, a, b),
		"there are 1":         {nil, nil},
	} {
		err := w.Check(s, rates)
		require.ErrorIs(t, err, exact.ErrSchedule, say)
		require.ErrorContains(t, err, say)
	}
}

// world draws a small world of so many models.
func world(t *rapid.T, gpus, models int) packtest.Builder {
	b := small(gpus)
	for i := range models {
		b = b.Shaped(fmt.Sprintf("m%d", i), rapid.Float64Range(0, 4).Draw(t, "alpha"), rapid.Float64Range(.5, 15).Draw(t, "beta"), rapid.Float64Range(10, 120).Draw(t, "slo"),
			0, rapid.SampledFrom([]uint32{20, 40, 60, 100}).Draw(t, "knee"))
		b.Models[i].MaxBatchSize = 4
	}
	if rapid.Bool().Draw(t, "interfering") {
		b = b.Interfering()
	}
	return b
}

// TestAgainstEverySchedule: the search finds a schedule exactly where trying every cut, every division of units and every batch finds one.
func TestAgainstEverySchedule(t *testing.T) {
	answers := make(map[bool]int)
	rapid.Check(t, func(t *rapid.T) {
		// Three of both are more than a test can try.
		models := rapid.IntRange(2, 3).Draw(t, "models")
		cut := 5 - models
		b := world(t, 1, models)
		sizes := []uint32{20, 40, 50, 100}
		w, err := exact.New(b.Snapshot, exact.Options{Unit: rapid.Float64Range(5, 80).Draw(t, "unit"), Most: 2, Sizes: sizes, Parts: cut})
		require.NoError(t, err)
		unit := w.Unit(b.Models[0].GetName())
		rates, asked := map[string]float64{}, make([]int, len(b.Models))
		for i, m := range b.Models {
			asked[i] = rapid.IntRange(0, 2).Draw(t, "units")
			rates[m.GetName()] = float64(asked[i]) * unit
		}
		want := every(w, b, sizes, cut, unit, asked, rates)
		require.Equal(t, want, schedulable(t, w, rates))
		answers[want]++
	})
	if !testing.Short() { // which draws few worlds
		require.Len(t, answers, 2, "some worlds can be scheduled, and some cannot")
	}
}

// every tries all schedules of one GPU with up to so many partitions.
func every(w *exact.World, b packtest.Builder, sizes []uint32, most int, unit float64, asked []int, rates map[string]float64) bool {
	var cut func(parts []exact.Part, from int, left uint32) bool
	cut = func(parts []exact.Part, from int, left uint32) bool {
		if len(parts) > 0 && divide(w, b, parts, unit, asked, 0, rates) {
			return true
		}
		for i := from; i < len(sizes) && len(parts) < most; i++ {
			if sizes[i] <= left && cut(append(parts[:len(parts):len(parts)], exact.Part{Size: sizes[i]}), i, left-sizes[i]) {
				return true
			}
		}
		return false
	}
	return cut(nil, 0, 100)
}

// divide gives the units of a model to partitions in all ways, and then fixes batches in all ways.
func divide(w *exact.World, b packtest.Builder, parts []exact.Part, unit float64, asked []int, model int, rates map[string]float64) bool {
	if model == len(asked) {
		return batches(w, b, parts, rates)
	}
	var give func(at, left int, parts []exact.Part) bool
	give = func(at, left int, parts []exact.Part) bool {
		if at == len(parts) {
			return left == 0 && divide(w, b, parts, unit, asked, model+1, rates)
		}
		for n := range left + 1 {
			next := append([]exact.Part(nil), parts...)
			if n > 0 {
				next[at].Turns = append(append([]exact.Turn(nil), next[at].Turns...), exact.Turn{Model: b.Models[model].GetName(), Rate: float64(n) * unit})
			}
			if give(at+1, left-n, next) {
				return true
			}
		}
		return false
	}
	return give(0, asked[model], parts)
}

// batches tries every batch of every turn, with rounds as long as their batches take.
func batches(w *exact.World, b packtest.Builder, parts []exact.Part, rates map[string]float64) bool {
	for at := range parts {
		turns := append([]exact.Turn(nil), parts[at].Turns...)
		parts[at].Turns = turns
		var fix func(k int) bool
		fix = func(k int) bool {
			if k == len(turns) {
				parts[at].Round = 0
				for _, t := range turns {
					parts[at].Round += took(b, parts, at, t)
				}
				// The other partitions are not fixed yet: only this one is checked, beside the models that run on them.
				return w.CheckPart(parts, at) == nil
			}
			for batch := uint32(1); batch <= 4; batch++ {
				turns[k].Batch = batch
				if fix(k + 1) {
					return true
				}
			}
			return false
		}
		if !fix(0) {
			return false
		}
	}
	return w.Check(exact.Schedule{parts}, rates) == nil
}

// took is how long a turn's batch takes beside what runs on the other partitions.
func took(b packtest.Builder, parts []exact.Part, at int, turn exact.Turn) float64 {
	profile := func(model string) *policy.Profile {
		for _, p := range b.Profiles {
			if p.GetModel() == model {
				return p
			}
		}
		return nil
	}
	use := func(model string, size uint32) (l2, bandwidth float64) {
		for batch := uint32(1); batch <= 4; batch++ {
			a, _ := profile(model).L2(batch, 100)
			c, _ := profile(model).Bandwidth(batch, 100)
			l2, bandwidth = max(l2, a*float64(size)/100), max(bandwidth, c*float64(size)/100)
		}
		return l2, bandwidth
	}
	slow := 1.0
	for o, other := range parts {
		for _, co := range other.Turns {
			if o != at && len(b.Interference) > 0 {
				m := b.Interference[0]
				l2, bandwidth := use(turn.Model, parts[at].Size)
				l2o, bandwidtho := use(co.Model, other.Size)
				slow = max(slow, m.GetL2Self()*l2+m.GetL2Other()*l2o+m.GetBandwidthSelf()*bandwidth+m.GetBandwidthOther()*bandwidtho+m.GetConstant())
			}
		}
	}
	l, _ := profile(turn.Model).Upper(turn.Batch, parts[at].Size)
	return l * slow
}

// TestMoreNeverHurts: what can be scheduled can be with a GPU more, with less load, and with smaller units; and what is impossible cannot be scheduled
// with units that are a fifth.
func TestMoreNeverHurts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, unit := world(t, 2, rapid.IntRange(2, 3).Draw(t, "models")), rapid.Float64Range(20, 200).Draw(t, "unit")
		three := proto.CloneOf(b.Snapshot)
		three.Nodes[0].Gpus = append(three.Nodes[0].Gpus, proto.CloneOf(three.Nodes[0].Gpus[0]))
		three.Nodes[0].Gpus[2].Id = "more"
		rates, fewer := map[string]float64{}, map[string]float64{}
		for _, m := range b.Models {
			n := rapid.IntRange(0, 2).Draw(t, "units")
			rates[m.GetName()], fewer[m.GetName()] = float64(n)*unit, float64(max(0, n-1))*unit
		}
		world := func(s *policy.Snapshot, unit float64, most int) *exact.World {
			w, err := exact.New(s, exact.Options{Unit: unit, Most: most})
			require.NoError(t, err)
			return w
		}
		w := world(b.Snapshot, unit, 2)
		if schedulable(t, w, rates) {
			require.True(t, schedulable(t, w, fewer))
			require.True(t, schedulable(t, world(three, unit, 2), rates))
			require.True(t, schedulable(t, world(b.Snapshot, unit/2, 4), rates))
		}
		load, err := w.Load(rates)
		require.NoError(t, err)
		if w.Impossible(load) {
			require.False(t, schedulable(t, world(b.Snapshot, unit/5, 10), rates))
		}
	})
}
