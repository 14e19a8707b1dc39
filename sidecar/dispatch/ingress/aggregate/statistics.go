// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ModelStatistics sums over partitions what they did, and takes from Counts what clients saw: one batch of eight
// requests is one request to a partition and eight to clients.
func (a *Aggregate) ModelStatistics(ctx context.Context, r *tritonpb.ModelStatisticsRequest) (*tritonpb.ModelStatisticsResponse, error) {
	version, err := canonicalVersion(r.GetVersion())
	if err != nil {
		return nil, err
	}
	partitions := a.up()
	if name := r.GetName(); name != "" {
		m, ok := a.o.Models.Lookup(name)
		if partitions = a.with(name); !ok || len(m.Versions) == 0 || len(partitions) == 0 {
			return nil, status.Errorf(codes.InvalidArgument, "requested model '%s' is not available", name)
		}
		if version != "" && !slices.Contains(m.Versions, version) {
			return nil, status.Errorf(codes.InvalidArgument, "requested model version is not available for model '%s'", name)
		}
	}
	answers, failures := askAll(ctx, a, partitions, tritonpb.GRPCInferenceServiceClient.ModelStatistics,
		&tritonpb.ModelStatisticsRequest{Name: r.GetName(), Version: version})
	var all []*tritonpb.ModelStatistics
	answered := 0
	for i, answer := range answers {
		if failures[i] == nil {
			answered++
			all = append(all, answer.GetModelStats()...)
		}
	}
	if answered == 0 && len(partitions) > 0 {
		return nil, failures[0]
	}
	merged := mergeStatistics(all)
	if a.o.Counts != nil {
		applyCounts(merged, a.o.Counts)
	}
	return &tritonpb.ModelStatisticsResponse{ModelStats: merged}, nil
}

// mergeStatistics adds up the entries of one model and version; it takes over the messages.
func mergeStatistics(all []*tritonpb.ModelStatistics) []*tritonpb.ModelStatistics {
	type key struct{ name, version string }
	merged := make(map[key]*tritonpb.ModelStatistics)
	var list []*tritonpb.ModelStatistics
	for _, s := range all {
		k := key{s.GetName(), s.GetVersion()}
		if sum, ok := merged[k]; ok {
			addStatistics(sum, s)
			continue
		}
		merged[k] = s
		list = append(list, s)
	}
	slices.SortFunc(list, func(x, y *tritonpb.ModelStatistics) int {
		return cmp.Or(strings.Compare(x.GetName(), y.GetName()), compareVersions(x.GetVersion(), y.GetVersion()))
	})
	for _, s := range list {
		slices.SortFunc(s.BatchStats, func(x, y *tritonpb.InferBatchStatistics) int {
			return cmp.Compare(x.GetBatchSize(), y.GetBatchSize())
		})
	}
	return list
}

func addStatistics(sum, s *tritonpb.ModelStatistics) {
	sum.LastInference = max(sum.LastInference, s.LastInference)
	sum.InferenceCount += s.InferenceCount
	sum.ExecutionCount += s.ExecutionCount
	if sum.InferenceStats == nil {
		sum.InferenceStats = &tritonpb.InferStatistics{}
	}
	to, from := sum.InferenceStats, s.GetInferenceStats()
	add(&to.Success, from.GetSuccess())
	add(&to.Fail, from.GetFail())
	add(&to.Queue, from.GetQueue())
	add(&to.ComputeInput, from.GetComputeInput())
	add(&to.ComputeInfer, from.GetComputeInfer())
	add(&to.ComputeOutput, from.GetComputeOutput())
	add(&to.CacheHit, from.GetCacheHit())
	add(&to.CacheMiss, from.GetCacheMiss())
	for _, b := range s.GetBatchStats() {
		i := slices.IndexFunc(sum.BatchStats, func(have *tritonpb.InferBatchStatistics) bool { return have.GetBatchSize() == b.GetBatchSize() })
		if i < 0 {
			sum.BatchStats = append(sum.BatchStats, b)
			continue
		}
		add(&sum.BatchStats[i].ComputeInput, b.GetComputeInput())
		add(&sum.BatchStats[i].ComputeInfer, b.GetComputeInfer())
		add(&sum.BatchStats[i].ComputeOutput, b.GetComputeOutput())
	}
	for key, r := range s.GetResponseStats() {
		have := sum.GetResponseStats()[key]
		if have == nil {
			if sum.ResponseStats == nil {
				sum.ResponseStats = make(map[string]*tritonpb.InferResponseStatistics)
			}
			sum.ResponseStats[key] = r
			continue
		}
		add(&have.ComputeInfer, r.GetComputeInfer())
		add(&have.ComputeOutput, r.GetComputeOutput())
		add(&have.Success, r.GetSuccess())
		add(&have.Fail, r.GetFail())
		add(&have.EmptyResponse, r.GetEmptyResponse())
		add(&have.Cancel, r.GetCancel())
	}
	sum.MemoryUsage = append(sum.MemoryUsage, s.GetMemoryUsage()...)
}

func add(to **tritonpb.StatisticDuration, from *tritonpb.StatisticDuration) {
	if *to == nil {
		*to = &tritonpb.StatisticDuration{}
	}
	(*to).Count += from.GetCount()
	(*to).Ns += from.GetNs()
}

// applyCounts puts clients' requests in place of partitions'. Clients are counted by model, so a model of which several
// versions are served keeps the sums.
func applyCounts(list []*tritonpb.ModelStatistics, counts Counts) {
	versions := make(map[string]int)
	for _, s := range list {
		versions[s.GetName()]++
	}
	for _, s := range list {
		c, ok := counts.Count(s.GetName())
		if !ok || versions[s.GetName()] != 1 {
			continue
		}
		if s.InferenceStats == nil {
			s.InferenceStats = &tritonpb.InferStatistics{}
		}
		s.InferenceStats.Success = &tritonpb.StatisticDuration{Count: c.Success, Ns: uint64(c.SuccessTime)}
		s.InferenceStats.Fail = &tritonpb.StatisticDuration{Count: c.Fail, Ns: uint64(c.FailTime)}
		s.InferenceStats.Queue = &tritonpb.StatisticDuration{Count: c.Success, Ns: uint64(c.QueueTime)}
	}
}
