// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
)

// profileOf has the points batch, share, latency; the upper quantile is a tenth
// above.
func profileOf(points ...[3]float64) *policy.Profile {
	p := &policy.Profile{Usable: true}
	for _, q := range points {
		p.Points = append(p.Points, &policy.ProfilePoint{
			Batch: uint32(q[0]), ThreadPercentage: uint32(q[1]),
			LatencyUs: &policy.Estimate{Value: q[2], ErrorBound: q[2] / 4}, LatencyUpperUs: q[2] * 1.1,
		})
	}
	return p
}

func TestLatency(t *testing.T) {
	grid := profileOf(
		[3]float64{1, 50, 3000}, [3]float64{8, 50, 10000},
		[3]float64{1, 100, 2000}, [3]float64{8, 100, 5500}, [3]float64{16, 100, 9500},
	)
	late := profileOf([3]float64{4, 100, 800}, [3]float64{8, 100, 1000})
	for _, test := range []struct {
		name         string
		profile      *policy.Profile
		batch, share uint32
		want         float64
		ok           bool
	}{
		{"a point", grid, 8, 100, 5500, true},
		{"between batches", grid, 12, 100, 7500, true},
		{"above the largest batch", grid, 24, 100, 13500, true},
		{"below the smallest batch", late, 1, 100, 800, true},
		{"above the largest share", late, 4, 100, 800, true},
		{"below the smallest share", grid, 1, 25, 6000, true},
		// Half way between 1/50 and 1/100 is 1/66.7.
		{"between shares", grid, 1, 67, 2000 + 1000*(1./67-1./100)/(1./50-1./100), true},
		{"between shares, each continued by itself", grid, 15, 50, 17000, true},
		{"one point, larger batch", profileOf([3]float64{4, 100, 1000}), 8, 100, 2000, true},
		{"no rows", grid, 0, 100, 0, false},
		{"no share", grid, 1, 0, 0, false},
		{"no points", &policy.Profile{}, 1, 100, 0, false},
		{"no profile", nil, 1, 100, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := test.profile.Latency(test.batch, test.share)
			require.Equal(t, test.ok, ok)
			require.InDelta(t, test.want, got, 1e-6)
			upper, _ := test.profile.Upper(test.batch, test.share)
			require.InDelta(t, 1.1*test.want, upper, 1e-6)
			bound, _ := test.profile.Bound(test.batch, test.share)
			require.InDelta(t, test.want/4, bound, 1e-6)
		})
	}
	require.Equal(t, uint32(8), grid.MaxBatch(100, 64, 5500*1.1+1e-6))
	require.Equal(t, uint32(4), grid.MaxBatch(100, 4, math.Inf(1)))
	require.Zero(t, grid.MaxBatch(100, 64, 100))
}

// On a monotone grid l(b, p) is monotone between and beyond its points too.
func TestOfPointsWithoutAShareNothingIsKnown(t *testing.T) {
	p := &policy.Profile{Points: []*policy.ProfilePoint{{Batch: 1, LatencyUs: &policy.Estimate{Value: 5}}}}
	_, ok := p.Latency(1, 100)
	require.False(t, ok)
	require.Zero(t, p.MaxBatch(100, 8, 10))
}

func TestMaxBatchOfAModelWithoutALimit(t *testing.T) {
	p := &policy.Profile{Points: []*policy.ProfilePoint{
		{Batch: 1, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: 5}}, {Batch: 2, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: 6}},
	}}
	require.Equal(t, uint32(16), p.MaxBatch(100, math.MaxUint32, 20))
}

func TestLatencyIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &policy.Profile{}
		alpha := rapid.Float64Range(0, 1000).Draw(t, "alpha")
		beta := rapid.Float64Range(1, 50_000).Draw(t, "beta")
		for _, share := range []uint32{20, 40, 60, 100} {
			if rapid.Bool().Draw(t, "left out") {
				continue
			}
			for _, batch := range []uint32{1, 2, 8, 32} {
				p.Points = append(p.Points, &policy.ProfilePoint{
					Batch: batch, ThreadPercentage: share,
					LatencyUs: &policy.Estimate{Value: (alpha*float64(batch) + beta) * 100 / float64(share)},
				})
			}
		}
		batch := rapid.Uint32Range(1, 100).Draw(t, "batch")
		share := rapid.Uint32Range(1, 99).Draw(t, "share")
		at, ok := p.Latency(batch, share)
		if !ok {
			require.Empty(t, p.Points)
			return
		}
		more, _ := p.Latency(batch+1, share)
		wider, _ := p.Latency(batch, share+1)
		const slack = 1e-6
		require.GreaterOrEqual(t, more, at-slack*at)
		require.LessOrEqual(t, wider, at+slack*at)
	})
}

func TestRule(t *testing.T) {
	x := policy.NewIndex(&policy.Snapshot{Constraints: []*policy.Constraint{
		{Model: "*", Gpus: []string{"gpu0", "gpu1"}, MaxInstances: 4},
		{Model: "a", Gpus: []string{"gpu1", "gpu2"}, MaxInstances: 6, MinThreadPercentage: 20, MaxThreadPercentage: 60},
		{Model: "a", MinInstances: 2, Pinned: true, MaxThreadPercentage: 50},
	}})
	a, other := x.Rule("a"), x.Rule("never mentioned")
	require.False(t, a.AllowsGPU("gpu0"))
	require.True(t, a.AllowsGPU("gpu1"))
	require.False(t, a.AllowsGPU("gpu2"), "all constraints hold together")
	require.True(t, other.AllowsGPU("gpu0"))
	require.False(t, other.AllowsGPU("gpu2"))
	require.Equal(t, uint32(4), a.MaxInstances)
	require.Equal(t, uint32(2), a.MinInstances)
	require.True(t, a.Pinned)
	require.False(t, other.Pinned)
	require.False(t, a.AllowsShare(19))
	require.True(t, a.AllowsShare(50))
	require.False(t, a.AllowsShare(51))
	gpus, restricted := a.GPUs()
	require.True(t, restricted)
	require.Equal(t, []string{"gpu1"}, gpus)
	_, restricted = policy.NewIndex(nil).Rule("a").GPUs()
	require.False(t, restricted)
}

func TestPartitionBytes(t *testing.T) {
	s := &policy.Snapshot{Models: []*policy.Model{
		{Name: "a", MemoryBytes: 100, ActivationBytesPerRow: 2, MaxBatchSize: 8},
		{Name: "b", MemoryBytes: 50, ActivationBytesPerRow: 10, MaxBatchSize: 4, Similarities: []*policy.Similarity{{Model: "a", SharedBytes: 30}}},
		{Name: "c"},
		{Name: "huge", MemoryBytes: math.MaxUint64, ActivationBytesPerRow: math.MaxUint64, MaxBatchSize: 2},
	}, Derived: []*policy.DerivedModel{{Recipe: &policy.Recipe{Name: "h"}, MemoryBytes: 200}}}
	x := policy.NewIndex(s)
	plan := &policy.Plan{
		Recipes: []*policy.Recipe{{Name: "g", Members: []string{"a", "b"}}, {Name: "h", Members: []string{"a", "b"}}},
	}
	for _, test := range []struct {
		name      string
		instances []*policy.Instance
		want      uint64
	}{
		{"nothing", nil, 0},
		{"own batch", []*policy.Instance{policy.ModelInstance("a", 0)}, 116},
		{"smaller batch", []*policy.Instance{policy.ModelInstance("a", 3)}, 106},
		{"working memory counts once", []*policy.Instance{policy.ModelInstance("a", 0), policy.ModelInstance("b", 0)}, 190},
		{"unknown memory", []*policy.Instance{policy.ModelInstance("c", 0), policy.ModelInstance("nosuch", 0)}, 0},
		{"a merge that is not made yet is its members", []*policy.Instance{policy.ModelInstance("g", 0)}, 190},
		{"or what it will be, where that is more", []*policy.Instance{policy.ModelInstance("h", 0)}, 240},
		{"no overflow", []*policy.Instance{policy.ModelInstance("huge", 0), policy.ModelInstance("a", 0)}, math.MaxUint64},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, x.PartitionBytes(plan, &policy.Partition{Instances: test.instances}))
		})
	}
}

func TestTally(t *testing.T) {
	var tally policy.Tally
	require.Equal(t, "0/0 partitions: there are none", tally.Unplaced("m").GetText())
	for range 3 {
		tally.Try(policy.CauseLatency)
	}
	for range 5 {
		tally.Try(policy.CauseMemory)
	}
	u := tally.Unplaced("m")
	require.Equal(t, "0/8 partitions: 5 memory, 3 latency", u.GetText())
	require.Equal(t, uint32(8), u.GetTried())
	tally.Try("")
	require.Equal(t, "1/9 partitions: 5 memory, 3 latency", tally.Unplaced("m").GetText())
}

func TestGPUOrder(t *testing.T) {
	x := policy.NewIndex(&policy.Snapshot{Nodes: []*policy.Node{
		{Name: "b", Gpus: []*policy.GPU{{Id: "gpu10", Index: 10}, {Id: "gpu2", Index: 2}}},
		{Name: "a", Gpus: []*policy.GPU{{Id: "y"}, {Id: "x"}}},
	}})
	order := make([]string, 0, len(x.GPUs()))
	for _, g := range x.GPUs() {
		order = append(order, g.Node+"/"+g.GetId())
	}
	require.Equal(t, []string{"a/x", "a/y", "b/gpu2", "b/gpu10"}, order)
	require.NotNil(t, x.GPU("b", "gpu2"))
	require.Nil(t, x.GPU("a", "gpu2"))
}

func TestHopeless(t *testing.T) {
	slow := profileOf([3]float64{1, 100, 10_000})
	slow.Model, slow.GpuType = "m", "T4"
	s := &policy.Snapshot{
		Nodes:    []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "g", Type: "T4"}, {Id: "h", Type: "A100", Unavailable: true}}}},
		Models:   []*policy.Model{{Name: "m", SloUs: 10_500}},
		Profiles: []*policy.Profile{slow},
	}
	require.False(t, policy.NewIndex(s).Meets("m", "T4", 100), "the upper quantile of 11 ms counts")
	require.True(t, policy.NewIndex(s).Meets("m", "A100", 100), "without a profile nothing says no")
	require.True(t, policy.NewIndex(s).Hopeless("m"))
	s.Nodes[0].Gpus[1].Unavailable = false
	require.False(t, policy.NewIndex(s).Hopeless("m"))
	s.Constraints = []*policy.Constraint{{Model: "m", Gpus: []string{"g"}}}
	require.True(t, policy.NewIndex(s).Hopeless("m"), "only where it may be counts")
	slow.Usable = false
	require.False(t, policy.NewIndex(s).Hopeless("m"))
}

func TestRequires(t *testing.T) {
	x := policy.NewIndex(&policy.Snapshot{
		Models: []*policy.Model{
			{Name: "a", DependsOn: []string{"b", "gone"}}, {Name: "b", DependsOn: []string{"c", "a"}}, {Name: "c"}, {Name: "d"},
		},
		Constraints: []*policy.Constraint{{Model: "c", Exclusive: true}},
	})
	names := make([]string, 0, len(x.Requires("a")))
	for _, m := range x.Requires("a") {
		names = append(names, m.GetName())
	}
	require.Equal(t, []string{"a", "b", "c"}, names, "a circle ends")
	require.True(t, x.MayShare("c", "a"))
	require.False(t, x.MayShare("d", "c"))
	require.True(t, x.MayShare("d", "a"))
}

func TestResolve(t *testing.T) {
	d := &policy.Description{Name: "p", Parameters: []*policy.Parameter{
		{Name: "i", Type: policy.TypeInt, DefaultValue: "1"},
		{Name: "f", Type: policy.TypeFloat, DefaultValue: "1.5"},
		{Name: "b", Type: policy.TypeBool, DefaultValue: "true"},
		{Name: "d", Type: policy.TypeDuration, DefaultValue: "1s"},
		{Name: "s", Type: policy.TypeString},
		{Name: "one", Type: policy.TypeString, DefaultValue: "x", Values: []string{"x", "y"}},
	}}
	got, err := d.Resolve(map[string]string{"i": "-7", "d": "3ms", "s": "any", "one": "y"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"i": "-7", "f": "1.5", "b": "true", "d": "3ms", "s": "any", "one": "y"}, got)
	for name, value := range map[string]string{"i": "1.5", "f": "x", "b": "maybe", "d": "3", "z": ""} {
		_, err := d.Resolve(map[string]string{name: value})
		require.Error(t, err, name)
	}
	_, err = d.Resolve(map[string]string{"one": "z"})
	require.EqualError(t, err, `policy p, parameter one: "z" is none of its values; there are: x, y`)
	got, err = d.Resolve(map[string]string{"one": ""})
	require.NoError(t, err)
	require.Empty(t, got["one"], "an empty value is the policy's own affair")
}

func TestUnmet(t *testing.T) {
	d := &policy.Description{Needs: []string{
		policy.NeedProfiles, policy.NeedInterference, policy.NeedRequirements, policy.NeedUtilizations, policy.NeedSimilarity,
		policy.NeedDerived, policy.NeedVariants, policy.NeedCost, policy.NeedEvaluate, "magic",
	}}
	require.Equal(t, []string{"magic"}, d.Unmet(&policy.Snapshot{}))
	s := &policy.Snapshot{Models: []*policy.Model{{Name: "m"}}}
	require.Equal(t, d.Needs, d.Unmet(s))
	point := &policy.ProfilePoint{Batch: 1, ThreadPercentage: 100}
	s.Profiles = []*policy.Profile{{Model: "m", Usable: true, Points: []*policy.ProfilePoint{point}}}
	s.Interference = []*policy.Interference{{}}
	s.Models[0].Similarities = []*policy.Similarity{{}}
	s.Derived = []*policy.DerivedModel{{}}
	s.Apps = []*policy.App{{Variants: []*policy.Variant{{}}}}
	s.Nodes = []*policy.Node{{Gpus: []*policy.GPU{{CostPerHour: 1}}}}
	s.Evaluations, s.Traffic = 64, &policy.Traffic{Digest: "d"}
	require.Equal(t, []string{policy.NeedRequirements, policy.NeedUtilizations, "magic"}, d.Unmet(s), "a zero is not known, not small")
	point.Creq, point.Mreq = &policy.Estimate{Value: .5}, &policy.Estimate{Value: .1}
	point.BandwidthUtilization, point.L2Utilization = &policy.Estimate{Value: .2}, &policy.Estimate{Value: .3}
	require.Equal(t, []string{"magic"}, d.Unmet(s))
	s.Profiles = append(s.Profiles, &policy.Profile{Model: "n", Usable: true, Points: []*policy.ProfilePoint{{Batch: 1, ThreadPercentage: 100}}})
	require.Equal(t, []string{policy.NeedRequirements, policy.NeedUtilizations, "magic"}, d.Unmet(s), "of every model, not of some")
	for _, need := range d.Needs {
		require.True(t, strings.HasPrefix(policy.Remedy(need), need+": "), "what to do about %s", need)
	}
}

func TestModelsOf(t *testing.T) {
	plan := &policy.Plan{
		Recipes: []*policy.Recipe{{Name: "g", Members: []string{"a", "b"}}, {Name: "s", Members: []string{"c"}}},
		Partitions: []*policy.Partition{
			{Id: "0", Instances: []*policy.Instance{policy.ModelInstance("g", 0)}},
			{Id: "1", Instances: []*policy.Instance{policy.ModelInstance("s", 0), policy.ModelInstance("b", 1)}},
			{Id: "2", Instances: []*policy.Instance{{}}},
		},
	}
	places := func(model string) (ids []string) {
		for _, p := range plan.PartitionsOf(model) {
			ids = append(ids, p.GetId())
		}
		return ids
	}
	require.Equal(t, []string{"0"}, places("a"))
	require.Equal(t, []string{"0", "1"}, places("b"))
	require.Equal(t, []string{"1"}, places("c"))
	require.Empty(t, places("g"))
	require.True(t, proto.Equal(&policy.Instance{MaxBatch: 3, Model: "x"}, policy.ModelInstance("x", 3)))
}

// A partition that holds something takes the context of its process besides; a limit of the partition does not count that.
func TestContextsCount(t *testing.T) {
	x := policy.NewIndex(&policy.Snapshot{
		Nodes:  []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "g", ContextBytes: 400}}, Cpu: &policy.CPU{}}},
		Models: []*policy.Model{{Name: "m", MemoryBytes: 1000, ActivationBytesPerRow: 10, MaxBatchSize: 4}},
	})
	holding := []*policy.Instance{policy.ModelInstance("m", 4)}
	for want, p := range map[uint64]*policy.Partition{
		1440: {Node: "n", Gpus: []string{"g"}, Instances: holding},
		0:    {Node: "n", Gpus: []string{"g"}},
		1040: {Node: "n", Instances: holding},
	} {
		require.Equal(t, want, x.HostBytes(&policy.Plan{}, p))
	}
	require.Equal(t, uint64(1040), x.PartitionBytes(&policy.Plan{}, &policy.Partition{Node: "n", Gpus: []string{"g"}, Instances: holding}))
}
