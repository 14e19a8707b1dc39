// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ModelStatistics sums the statistics of the partitions, and takes the requests of clients from Counts: one batch of
// eight requests is one request to a partition and eight to clients.
func (a *Aggregate) ModelStatistics(ctx context.Context, r *tritonpb.ModelStatisticsRequest) (*tritonpb.ModelStatisticsResponse, error) {
	version, err := canonicalVersion(r.GetVersion())
	if err != nil {
		return nil, err
	}
	partitions, asked := a.up(), &tritonpb.ModelStatisticsRequest{Name: r.GetName(), Version: version}
	if name := r.GetName(); name != "" {
		m, ok := a.o.Models.Lookup(name)
		if m.Group != "" {
			asked.Name, asked.Version = m.Group, ""
		}
		if partitions = a.with(name); !ok || m.Internal || len(m.Versions) == 0 || len(partitions) == 0 {
			return nil, status.Errorf(codes.InvalidArgument, "requested model '%s' is not available", name)
		}
		if version != "" && !slices.Contains(m.Versions, version) {
			return nil, status.Errorf(codes.InvalidArgument, "requested model version is not available for model '%s'", name)
		}
	}
	merged, err := a.gather(ctx, partitions, asked)
	if err != nil {
		return nil, err
	}
	merged = a.ofMembers(merged, r.GetName())
	if a.o.Counts != nil {
		applyCounts(merged, a.o.Counts, a.called())
	}
	for _, s := range merged {
		if m, _ := a.o.Models.Lookup(s.GetName()); m.Group != "" {
			s.BatchStats = nil // the group's
		}
	}
	return &tritonpb.ModelStatisticsResponse{ModelStats: merged}, nil
}

// ofMembers replaces the merge groups in a list by their members, or by the only one that is asked for: with the members' own counts, and the
// group's averages.
func (a *Aggregate) ofMembers(list []*tritonpb.ModelStatistics, only string) []*tritonpb.ModelStatistics {
	groups := map[string]*tritonpb.ModelStatistics{}
	list = slices.DeleteFunc(list, func(s *tritonpb.ModelStatistics) bool {
		m, _ := a.o.Models.Lookup(s.GetName())
		if m.Internal {
			groups[s.GetName()] = s
		}
		return m.Internal
	})
	if len(groups) == 0 {
		return list
	}
	for _, e := range a.o.Models.Repository() {
		m, _ := a.o.Models.Lookup(e.Name)
		group := groups[m.Group]
		if group == nil || len(m.Versions) == 0 || only != "" && only != e.Name {
			continue
		}
		s := proto.CloneOf(group)
		s.Name, s.Version = e.Name, m.Versions[len(m.Versions)-1]
		s.InferenceCount, s.ExecutionCount = 0, 0
		if a.o.Counts != nil {
			if c, ok := a.o.Counts.Count(s.GetName(), s.GetVersion()); ok {
				s.InferenceCount, s.ExecutionCount = c.Rows, c.Executions
			}
		}
		if s.InferenceCount == 0 {
			s.LastInference = 0
		}
		list = append(list, s)
	}
	return mergeStatistics(list) // in order
}

// A server counts a request a moment after it has answered. A client that counts its own answers must not notice that,
// so partitions are asked again until their counts are complete, for at most statisticsLag.
const (
	statisticsLag   = 25 * time.Millisecond
	statisticsAgain = time.Millisecond
)

func (a *Aggregate) gather(ctx context.Context, partitions []Partition, r *tritonpb.ModelStatisticsRequest) ([]*tritonpb.ModelStatistics, error) {
	for began := time.Now(); ; {
		answers, failures := askAll(ctx, a, partitions, tritonpb.GRPCInferenceServiceClient.ModelStatistics, r)
		var all []*tritonpb.ModelStatistics
		answered := 0
		for i, answer := range answers {
			if failures[i] == nil {
				answered++
				for _, s := range answer.GetModelStats() {
					all = append(all, a.ofClients(s, partitions[i]))
				}
			}
		}
		if answered == 0 && len(partitions) > 0 {
			return nil, failures[0]
		}
		merged := mergeStatistics(all)
		if a.o.Counts == nil || time.Since(began) > statisticsLag || !lagging(merged, a.o.Counts) {
			return merged, nil
		}
		select {
		case <-time.After(statisticsAgain):
		case <-ctx.Done():
			return merged, nil
		}
	}
}

// lagging reports whether a server has not yet counted all that it has answered.
func lagging(list []*tritonpb.ModelStatistics, counts Counts) bool {
	for _, s := range list {
		if c, ok := counts.Count(s.GetName(), s.GetVersion()); ok && s.GetExecutionCount() < c.Executions {
			return true
		}
	}
	return false
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
	durations(sum.InferenceStats, s.GetInferenceStats(), add)
	for _, b := range s.GetBatchStats() {
		i := slices.IndexFunc(sum.BatchStats, func(have *tritonpb.InferBatchStatistics) bool { return have.GetBatchSize() == b.GetBatchSize() })
		if i < 0 {
			sum.BatchStats = append(sum.BatchStats, b)
			continue
		}
		durations(sum.BatchStats[i], b, add)
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
		durations(have, r, add)
	}
	sum.MemoryUsage = append(sum.MemoryUsage, s.GetMemoryUsage()...)
}

// durations calls do for each duration of two messages of one type that one of them has.
func durations(to, from proto.Message, do func(to, from *tritonpb.StatisticDuration)) {
	into, other := to.ProtoReflect(), from.ProtoReflect()
	for i := range into.Descriptor().Fields().Len() {
		if f := into.Descriptor().Fields().Get(i); f.Message() != nil && (into.Has(f) || other.Has(f)) {
			do(into.Mutable(f).Message().Interface().(*tritonpb.StatisticDuration), other.Get(f).Message().Interface().(*tritonpb.StatisticDuration))
		}
	}
}

func add(to, from *tritonpb.StatisticDuration) {
	to.Count += from.GetCount()
	to.Ns += from.GetNs()
}

func subtract(from, less *tritonpb.StatisticDuration) {
	from.Count -= min(from.Count, less.GetCount())
	from.Ns -= min(from.Ns, less.GetNs())
}

// bygone holds the warm-ups that are in no statistics any more. An entry is deleted with its warm-up.
type bygone struct{ all sync.Map } // of weak.Pointer[tritonpb.ModelStatistics]

func (b *bygone) add(warm *tritonpb.ModelStatistics) {
	key := weak.Make(warm)
	if _, known := b.all.LoadOrStore(key, nil); !known {
		runtime.AddCleanup(warm, func(key weak.Pointer[tritonpb.ModelStatistics]) { b.all.Delete(key) }, key)
	}
}

func (b *bygone) has(warm *tritonpb.ModelStatistics) bool {
	_, has := b.all.Load(weak.Make(warm))
	return has
}

// ofClients subtracts from a partition's statistics what its warm-up added. Statistics of a model that have begun anew do not contain the
// warm-up, now and later; they have lower counts than the warm-up. Triton's of an ensemble begin anew when a member is loaded again.
func (a *Aggregate) ofClients(s *tritonpb.ModelStatistics, p Partition) *tritonpb.ModelStatistics {
	if p.WarmedUp == nil {
		return s
	}
	for _, warm := range p.WarmedUp(s.GetName()) {
		if warm.GetVersion() != s.GetVersion() || a.anew.has(warm) {
			continue
		}
		if warm.GetExecutionCount() > s.GetExecutionCount() || warm.GetInferenceCount() > s.GetInferenceCount() {
			a.anew.add(warm)
			continue
		}
		s.InferenceCount -= warm.GetInferenceCount()
		s.ExecutionCount -= warm.GetExecutionCount()
		if s.ExecutionCount == 0 {
			s.LastInference = 0
		}
		if s.InferenceStats != nil {
			durations(s.InferenceStats, warm.GetInferenceStats(), subtract)
		}
		for _, b := range warm.GetBatchStats() {
			if i := slices.IndexFunc(s.GetBatchStats(), func(have *tritonpb.InferBatchStatistics) bool { return have.GetBatchSize() == b.GetBatchSize() }); i >= 0 {
				durations(s.BatchStats[i], b, subtract)
			}
		}
		s.BatchStats = slices.DeleteFunc(s.BatchStats, func(b *tritonpb.InferBatchStatistics) bool { return b.GetComputeInfer().GetCount() == 0 })
	}
	return s
}

// called are the models that ensembles call.
func (a *Aggregate) called() map[string]bool {
	called := map[string]bool{}
	for _, e := range a.o.Models.Repository() {
		m, _ := a.o.Models.Lookup(e.Name)
		for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
			called[step.GetModelName()] = true
		}
	}
	return called
}

// applyCounts replaces partitions' requests by those of clients. A server charges every request of a batch with the time
// of the batch. A partition that got the batch as one request charges it once, so each request is charged here with the
// average of its batch's size. The requests of ensembles to a model are added: Triton counts their steps as requests of
// the model.
func applyCounts(list []*tritonpb.ModelStatistics, counts Counts, called map[string]bool) {
	for _, s := range list {
		c, ok := counts.Count(s.GetName(), s.GetVersion())
		if !ok {
			continue
		}
		if s.InferenceStats == nil {
			s.InferenceStats = &tritonpb.InferStatistics{}
		}
		of := s.InferenceStats
		addWalks(s, &c)
		input := perRequest(c, s, of.GetComputeInput(), (*tritonpb.InferBatchStatistics).GetComputeInput)
		infer := perRequest(c, s, of.GetComputeInfer(), (*tritonpb.InferBatchStatistics).GetComputeInfer)
		output := perRequest(c, s, of.GetComputeOutput(), (*tritonpb.InferBatchStatistics).GetComputeOutput)
		inServer := c.Success * average(of.GetQueue())
		served, asked := of.GetSuccess(), uint64(0)
		if called[s.GetName()] && served.GetCount() > c.Asked {
			asked = served.GetCount() - c.Asked
		}
		steps := func(sum, each *tritonpb.StatisticDuration) *tritonpb.StatisticDuration {
			sum.Count += asked
			sum.Ns += asked * average(each)
			return sum
		}
		input, infer, output = steps(input, of.GetComputeInput()), steps(infer, of.GetComputeInfer()), steps(output, of.GetComputeOutput())
		queue := steps(&tritonpb.StatisticDuration{Count: c.Success, Ns: uint64(c.QueueTime) + inServer}, of.GetQueue())
		of.Success = steps(&tritonpb.StatisticDuration{Count: c.Success, Ns: uint64(c.SuccessTime)}, served)
		of.Fail = &tritonpb.StatisticDuration{Count: c.Fail, Ns: uint64(c.FailTime)}
		of.Queue = queue
		of.ComputeInput, of.ComputeInfer, of.ComputeOutput = input, infer, output
	}
}

// addWalks adds the requests of an ensemble whose steps Conch executed, as Triton counts those that it executes: each is one execution of its rows. What
// is not waiting is charged as inference.
func addWalks(s *tritonpb.ModelStatistics, c *Count) {
	if len(c.Walked) == 0 {
		return
	}
	each := uint64(max(0, c.SuccessTime-c.QueueTime)) / max(1, c.Success)
	for _, rows := range slices.Sorted(maps.Keys(c.Walked)) {
		n := c.Walked[rows]
		s.InferenceCount += n * uint64(rows)
		s.ExecutionCount += n
		batch := &tritonpb.ModelStatistics{BatchStats: []*tritonpb.InferBatchStatistics{{
			BatchSize: uint64(rows), ComputeInput: &tritonpb.StatisticDuration{Count: n}, ComputeInfer: &tritonpb.StatisticDuration{Count: n, Ns: n * each}, ComputeOutput: &tritonpb.StatisticDuration{Count: n},
		}}}
		addStatistics(s, batch)
	}
	slices.SortFunc(s.BatchStats, func(x, y *tritonpb.InferBatchStatistics) int { return cmp.Compare(x.GetBatchSize(), y.GetBatchSize()) })
	s.LastInference = max(s.LastInference, uint64(max(0, c.LastWalk.UnixMilli())))
}

// perRequest charges every request with the average of its batch's size, or of all where no such batch is known.
func perRequest(c Count, s *tritonpb.ModelStatistics, total *tritonpb.StatisticDuration, of func(*tritonpb.InferBatchStatistics) *tritonpb.StatisticDuration) *tritonpb.StatisticDuration {
	sum := &tritonpb.StatisticDuration{}
	for rows, n := range c.Ran {
		each := average(total)
		for _, b := range s.GetBatchStats() {
			if b.GetBatchSize() == uint64(rows) && of(b).GetCount() > 0 {
				each = average(of(b))
			}
		}
		sum.Count += n
		sum.Ns += n * each
	}
	return sum
}

// average is in nanoseconds.
func average(d *tritonpb.StatisticDuration) uint64 {
	if d.GetCount() == 0 {
		return 0
	}
	return d.GetNs() / d.GetCount()
}
