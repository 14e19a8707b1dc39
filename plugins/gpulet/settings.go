// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpulet

import (
	"context"
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Parameters.
const (
	paramPartitioning = "partitioning"
	paramInterference = "interference"
	paramInflation    = "poisson_inflation"
	paramMargin       = "latency_margin"
	paramMost         = "partitions_per_gpu"
	paramModels       = "models_per_partition"
	paramSizes        = "sizes"
	paramResidue      = "dropped_residue"
	paramMemory       = "memory"
	paramContext      = "partition_bytes"
	paramScaling      = "gpu_scaling"
	paramDiscipline   = "discipline"
	paramRound        = "round"
	paramPhases       = "phases"
)

// What a round has to keep within the SLOs of its models.
const (
	paperRound = "paper"
	ownRound   = "own"
)

// Ways to cut GPUs.
const (
	elastic   = "elastic"
	bestFit   = "bestfit"
	evenSplit = "evensplit"
	noSplit   = "none"
)

// settings are the parameters, read.
type settings struct {
	partitioning          string
	interference, inflate bool
	margin                float64
	most, models          int
	sizes                 []uint32
	residue               float64
	memory                float64
	context               uint64
	scaling               bool
	rounds                bool
	wait                  pack.Wait
	phases                map[string][]float64 // of pipelines
}

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version, IntervalUs: 20e6,
		Summary: "Gives every model the share of a GPU at its knee, shares the rest in time, and minds interference.",
		// Interference needs utilizations too: Plan asks for them unless it is off.
		Needs:       []string{policy.NeedProfiles},
		Disciplines: []string{"adaptive", "duty-cycle"},
		Parameters: []*policy.Parameter{
			{Name: paramPartitioning, Type: policy.TypeString, DefaultValue: elastic, Values: []string{elastic, bestFit, evenSplit, noSplit},
				Documentation: "How GPUs are cut: elastic (algorithm 1), bestfit (the least share that carries the rate, section 3.3), evensplit (halves), none (whole GPUs)."},
			{Name: paramInterference, Type: policy.TypeString, DefaultValue: "on", Values: []string{"on", "off"},
				Documentation: "Count the slowdown by what runs on the other partitions of a GPU (section 4.4). It needs coefficients per type of GPU, and bandwidth and L2 utilisation of every model."},
			{Name: paramInflation, Type: policy.TypeBool, DefaultValue: "true",
				Documentation: "Plan for the 99th percentile of Poisson arrivals in a second instead of the mean."},
			{Name: paramMargin, Type: policy.TypeFloat, DefaultValue: "1.1", Documentation: "Factor on every predicted latency."},
			{Name: paramMost, Type: policy.TypeInt, DefaultValue: "2", Documentation: "Most partitions of a GPU. The paper has 2."},
			{Name: paramModels, Type: policy.TypeInt, DefaultValue: "3", Documentation: "Most models that share a partition in time."},
			{Name: paramSizes, Type: policy.TypeString, DefaultValue: "20,40,50,60,80,100", Documentation: "Shares that partitions may have, in percent, ascending, up to 100."},
			{Name: paramResidue, Type: policy.TypeFloat, DefaultValue: "15", Documentation: "Rows per second that a model which has a place is left short of rather than given another."},
			{Name: paramMemory, Type: policy.TypeFloat, DefaultValue: "0.9", Documentation: "Fraction of a GPU's memory that is planned with."},
			{Name: paramContext, Type: policy.TypeInt, DefaultValue: "1230000000", Documentation: "Bytes that every partition takes besides its models (its process' CUDA context)."},
			{Name: paramScaling, Type: policy.TypeBool, DefaultValue: "false",
				Documentation: "Use the fewest GPUs that carry the load (algorithm 2); always so under the objective min-cost."},
			{Name: paramDiscipline, Type: policy.TypeString, DefaultValue: "adaptive", Values: []string{"adaptive", "duty-cycle"},
				Documentation: "How batches are dispatched: duty-cycle runs the rounds and batches that were planned."},
			{Name: paramRound, Type: policy.TypeString, DefaultValue: ownRound, Values: []string{paperRound, ownRound},
				Documentation: "What has to be within a model's SLO where models share a partition in time: the round and the latencies of all of its batches (paper, as in the authors' scheduler), or the round and the model's own (own)."},
			{Name: paramPhases, Type: policy.TypeString,
				Documentation: "How the SLO of a pipeline is divided among its phases: PIPELINE=NUMBER:NUMBER, one number for each phase, several pipelines with commas. Others are divided in proportion to the longest step of each phase. The authors' traffic is traffic=90:112."},
		},
	}, nil
}

func read(s *policy.Snapshot) (*settings, error) {
	p, err := pack.Read(Policy{}, s)
	if err != nil {
		return nil, err
	}
	set := &settings{
		partitioning: p.Text(paramPartitioning), rounds: p.Text(paramDiscipline) == "duty-cycle", interference: p.Text(paramInterference) != "off",
		inflate: p.Bool(paramInflation), scaling: p.Bool(paramScaling) || s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST,
		margin:  p.Float(paramMargin, pack.Between(1., 10), "from 1 to 10"),
		residue: p.Float(paramResidue, pack.AtLeast(0.), "0 or more"),
		memory:  p.Float(paramMemory, func(f float64) bool { return f > 0 && f <= 1 }, "above 0, at most 1"),
		most:    p.Int(paramMost, pack.Between(1, 10), "from 1 to 10"),
		models:  p.Int(paramModels, pack.AtLeast(1), "1 or more"),
		context: uint64(p.Int(paramContext, pack.AtLeast(0), "a number of bytes")), //nolint:gosec // not negative
		sizes:   p.Ascending(paramSizes, 100, "an ascending list of percents from 1 to 100"),
	}
	if p.Text(paramRound) == paperRound {
		set.wait = pack.ForAll
	}
	if set.phases, err = readPhases(p.Text(paramPhases)); err != nil {
		return nil, err
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if set.sizes[len(set.sizes)-1] != 100 {
		return nil, fmt.Errorf("gpulet: parameter %s: %q does not end with 100, the whole GPU", paramSizes, p.Text(paramSizes))
	}
	switch set.partitioning {
	case noSplit:
		set.sizes, set.most = []uint32{100}, 1
	case evenSplit:
		set.sizes = []uint32{50}
		set.most = 2
	}
	return set, nil
}
