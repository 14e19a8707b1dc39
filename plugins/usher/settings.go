// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usher

import (
	"context"
	"math"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Parameters.
const (
	paramClassify   = "classify"
	paramDivision   = "workload_division"
	paramSort       = "sort"
	paramMerge      = "merge"
	paramHeavy      = "heavy_ratio"
	paramGroup      = "group_size"
	paramBatches    = "batches"
	paramMultiples  = "replication_multiples"
	paramSimilarity = "similarity"
	paramSearch     = "search"
	paramPlacements = "placements"
)

// Ways to search the configurations of a group.
const (
	pruned     = "pruned"
	exhaustive = "exhaustive"
)

// settings are the parameters, read.
type settings struct {
	classify, division, sort, merge bool
	heavy, similarity               float64
	group, multiples                int
	batches                         []uint32
	exhaustive                      bool
	placements                      uint64
}

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version, IntervalUs: 60e6,
		Summary:     "Puts models that need compute beside models that need memory, in groups whose batch sizes and replicas are searched together.",
		Needs:       []string{policy.NeedProfiles, policy.NeedRequirements},
		Disciplines: []string{"adaptive"},
		Parameters: []*policy.Parameter{
			{Name: paramClassify, Type: policy.TypeBool, DefaultValue: "true",
				Documentation: "Alternate between compute-heavy and memory-heavy models of a group; false is the paper's USHER/CM."},
			{Name: paramDivision, Type: policy.TypeBool, DefaultValue: "true",
				Documentation: "Try more replicas than the load needs; false is the paper's USHER/WD."},
			{Name: paramSort, Type: policy.TypeBool, DefaultValue: "true",
				Documentation: "Take the models of a group by Creq + Mreq, descending; false is the paper's USHER/S."},
			{Name: paramMerge, Type: policy.TypeBool, DefaultValue: "true",
				Documentation: "Merge models of one GPU where a derived model is on offer; false is the paper's USHER/M."},
			{Name: paramHeavy, Type: policy.TypeFloat, DefaultValue: "1.2",
				Documentation: "A model is compute-heavy from this ratio of Creq to Mreq on, and memory-heavy from this ratio of Mreq to Creq on."},
			{Name: paramGroup, Type: policy.TypeInt, DefaultValue: "4", Documentation: "Models of a group: a power of two."},
			{Name: paramBatches, Type: policy.TypeString, DefaultValue: "4,8,16,32,64,128", Documentation: "Batch sizes (BS) that are tried, ascending, up to the model's own maximum."},
			{Name: paramMultiples, Type: policy.TypeInt, DefaultValue: "6", Documentation: "Replicas (RD) that are tried: 1 to this many times the fewest that carry the load."},
			{Name: paramSimilarity, Type: policy.TypeFloat, DefaultValue: "0.4", Documentation: "Least weight similarity (omega) of models that are merged."},
			{Name: paramSearch, Type: policy.TypeString, DefaultValue: pruned, Values: []string{pruned, exhaustive},
				Documentation: "pruned: configurations from the least demanding on, until none can be better or the placements are spent; exhaustive: all of them, as algorithm 1 is printed."},
			{Name: paramPlacements, Type: policy.TypeInt, DefaultValue: "500",
				Documentation: "Placements (calls of algorithm 2) that the pruned search of one group may spend; the snapshot's steps, where they are given, are shared by all groups instead."},
		},
	}, nil
}

func read(s *policy.Snapshot) (*settings, error) {
	p, err := pack.Read(Policy{}, s)
	if err != nil {
		return nil, err
	}
	set := &settings{
		exhaustive: p.Text(paramSearch) == exhaustive,
		classify:   p.Bool(paramClassify), division: p.Bool(paramDivision), sort: p.Bool(paramSort), merge: p.Bool(paramMerge),
		heavy:      p.Float(paramHeavy, pack.AtLeast(1.), "1 or more"),
		similarity: p.Float(paramSimilarity, pack.Between(0., 1), "from 0 to 1"),
		group:      p.Int(paramGroup, func(n int) bool { return n >= 1 && n <= 8 && n&(n-1) == 0 }, "1, 2, 4 or 8"),
		multiples:  p.Int(paramMultiples, pack.Between(1, 64), "from 1 to 64"),
		placements: uint64(p.Int(paramPlacements, pack.AtLeast(1), "1 or more")), //nolint:gosec // not negative
		batches:    p.Ascending(paramBatches, math.MaxUint16, "an ascending list of batch sizes"),
	}
	if !set.division {
		set.multiples = 1
	}
	return set, p.Err()
}
