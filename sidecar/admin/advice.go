// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// GPUAdvice implements API.
func (v view) GPUAdvice(context.Context) (api.GPUAdvice, error) {
	a := v.control.GPUAdvice()
	out := api.GPUAdvice{
		Action: api.AdviceUnknown, Reason: "too few requests were answered of late to say how many GPUs they want",
		Release: []string{}, GPUs: []api.GPUIdle{},
	}
	if a.Advice != nil {
		out.Action, out.Reason = api.AdviceHold, a.GetReason()
		out.BadRate, out.IdleShare, out.Requests, out.Seconds = a.GetBadRate(), a.GetIdleShare(), a.GetRequests(), a.GetSeconds()
		switch {
		case a.GetAllocateGpus() > 0:
			out.Action, out.Number = api.AdviceAllocate, int(a.GetAllocateGpus())
		case a.GetReleaseGpus() > 0:
			out.Action, out.Number, out.Release = api.AdviceRelease, int(a.GetReleaseGpus()), a.GetRelease()
		}
	}
	if len(a.OutOfReach) > 0 {
		out.Reason += "; left out: " + strings.Join(a.OutOfReach, ", ") + ", whose SLO is shorter than a request takes even alone"
	}
	release := func(id string) bool { return slices.Contains(out.Release, id) }
	for _, g := range a.Serving {
		rank := int(g.Rank)
		out.GPUs = append(out.GPUs, api.GPUIdle{ID: g.ID, Rank: &rank, IdleShare: g.IdleShare, Release: release(g.ID)})
	}
	for _, id := range a.Spare {
		out.GPUs = append(out.GPUs, api.GPUIdle{ID: id, IdleShare: 1, Release: release(id)})
	}
	return out, nil
}
