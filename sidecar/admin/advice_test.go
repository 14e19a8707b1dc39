// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/advice"
	"github.com/conch-serving/conch/sidecar/control"
)

// advised is a control loop with advice and nothing else.
type advised struct {
	admin.Control
	advice control.GPUAdvice
}

func (a advised) GPUAdvice() control.GPUAdvice { return a.advice }

func TestGPUAdviceOverTheAPI(t *testing.T) {
	serving := []advice.GPU{{ID: "gpu0", Rank: 0, IdleShare: .2}, {ID: "gpu1", Rank: 1, IdleShare: .9}}
	zero, one := 0, 1
	for name, test := range map[string]struct {
		is   control.GPUAdvice
		want api.GPUAdvice
	}{
		"unknown": {control.GPUAdvice{}, api.GPUAdvice{
			Action: api.AdviceUnknown, Reason: "too few requests were answered of late to say how many GPUs they want", Release: []string{}, GPUs: []api.GPUIdle{},
		}},
		"left out": {control.GPUAdvice{OutOfReach: []string{"a", "b"}}, api.GPUAdvice{
			Action: api.AdviceUnknown, Release: []string{}, GPUs: []api.GPUIdle{},
			Reason: "too few requests were answered of late to say how many GPUs they want; left out: a, b, whose SLO is shorter than a request takes even alone",
		}},
		"hold": {control.GPUAdvice{Advice: &policy.Advice{Reason: "hold: so", BadRate: .001, IdleShare: .2, Requests: 500, Seconds: 5}}, api.GPUAdvice{
			Action: api.AdviceHold, Reason: "hold: so", Release: []string{}, GPUs: []api.GPUIdle{}, BadRate: .001, IdleShare: .2, Requests: 500, Seconds: 5,
		}},
		"allocate": {control.GPUAdvice{Advice: &policy.Advice{Reason: "allocate 3: so", AllocateGpus: 3}}, api.GPUAdvice{
			Action: api.AdviceAllocate, Number: 3, Reason: "allocate 3: so", Release: []string{}, GPUs: []api.GPUIdle{},
		}},
		"release": {control.GPUAdvice{Advice: &policy.Advice{Reason: "so", ReleaseGpus: 2, Release: []string{"gpu2", "gpu1"}}, Serving: serving, Spare: []string{"gpu2"}}, api.GPUAdvice{
			Action: api.AdviceRelease, Number: 2, Reason: "so", Release: []string{"gpu2", "gpu1"}, GPUs: []api.GPUIdle{
				{ID: "gpu0", Rank: &zero, IdleShare: .2}, {ID: "gpu1", Rank: &one, IdleShare: .9, Release: true}, {ID: "gpu2", IdleShare: 1, Release: true},
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := serveAPI(t, admin.Of(advised{advice: test.is}, nil, nil)).GPUAdvice(t.Context())
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}
