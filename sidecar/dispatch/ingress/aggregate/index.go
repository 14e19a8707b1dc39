// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

type modelIndex = tritonpb.RepositoryIndexResponse_ModelIndex

// RepositoryIndex merges the repository and the indexes of all partitions. A version that is served is READY if it is on
// any partition; otherwise the state and reason are those of the first partition that has any. A model that is not
// served is UNAVAILABLE for the repository's reason, and UNLOADING while a partition still has it. Models that were
// never loaded appear by name.
func (a *Aggregate) RepositoryIndex(ctx context.Context, r *tritonpb.RepositoryIndexRequest) (*tritonpb.RepositoryIndexResponse, error) {
	if r.GetRepositoryName() != "" {
		return nil, status.Error(codes.Unimplemented, "'repository_name' specification is not supported")
	}
	answers, _ := askAll(ctx, a, a.up(), tritonpb.GRPCInferenceServiceClient.RepositoryIndex, &tritonpb.RepositoryIndexRequest{})
	indexes := make([][]*modelIndex, len(answers))
	for i, answer := range answers { // a partition that does not answer has nothing ready
		indexes[i] = answer.GetModels()
	}
	repository := a.o.Models.Repository()
	indexes = append(indexes, a.mergedMembers(repository))
	list := mergeIndexes(indexes, repository, r.GetReady())
	list = slices.DeleteFunc(list, func(m *modelIndex) bool {
		known, _ := a.o.Models.Lookup(m.GetName())
		return known.Internal
	})
	return &tritonpb.RepositoryIndexResponse{Models: list}, nil
}

// mergedMembers is the index of models that no server has because their merge group runs in their place.
func (a *Aggregate) mergedMembers(repository []Entry) (index []*modelIndex) {
	for _, e := range repository {
		if m, ok := a.o.Models.Lookup(e.Name); ok && m.Group != "" && len(a.with(e.Name)) > 0 {
			for _, version := range m.Versions {
				index = append(index, &modelIndex{Name: e.Name, Version: version, State: triton.StateReady})
			}
		}
	}
	return index
}

type indexKey struct{ name, version string }

func mergeIndexes(indexes [][]*modelIndex, repository []Entry, readyOnly bool) []*modelIndex {
	merged := make(map[indexKey]*modelIndex)
	for _, index := range indexes {
		for _, m := range index {
			k := indexKey{m.GetName(), m.GetVersion()}
			if old, ok := merged[k]; !ok || rank(m) > rank(old) {
				merged[k] = m
			}
		}
	}
	for _, entry := range repository {
		for _, version := range entry.Versions {
			k := indexKey{entry.Name, version}
			absent := &modelIndex{Name: entry.Name, Version: version, State: triton.StateUnavailable, Reason: entry.Reason}
			switch merged[k].GetState() {
			case triton.StateReady, triton.StateUnloading:
				absent.State, absent.Reason = triton.StateUnloading, ""
			case triton.StateLoading:
				continue
			}
			merged[k] = absent
		}
		if k := (indexKey{name: entry.Name}); merged[k] == nil {
			merged[k] = &modelIndex{Name: entry.Name}
		}
	}
	versioned := make(map[string]bool)
	for k := range merged {
		versioned[k.name] = versioned[k.name] || k.version != ""
	}
	list := make([]*modelIndex, 0, len(merged))
	for k, m := range merged {
		// A partition that never loaded the model has nothing to add to one that did.
		if (k.version == "" && versioned[k.name]) || (readyOnly && m.GetState() != triton.StateReady) {
			continue
		}
		list = append(list, proto.CloneOf(m))
	}
	slices.SortFunc(list, func(x, y *modelIndex) int {
		return cmp.Or(strings.Compare(x.GetName(), y.GetName()), compareVersions(x.GetVersion(), y.GetVersion()))
	})
	return list
}

// rank orders the states that partitions report of one version: the first with a state counts, unless one has it ready.
func rank(m *modelIndex) int {
	switch m.GetState() {
	case triton.StateReady:
		return 2
	case "":
		return 0
	}
	return 1
}

func compareVersions(x, y string) int {
	n, errX := strconv.ParseInt(x, 10, 64)
	m, errY := strconv.ParseInt(y, 10, 64)
	if errX != nil || errY != nil {
		return strings.Compare(x, y)
	}
	return cmp.Compare(n, m)
}
