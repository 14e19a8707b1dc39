// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/zoo"
)

// TestConfirmingJudgesEveryModel: a rate is confirmed by the model that fares worst, a little above or below what the search found.
func TestConfirmingJudgesEveryModel(t *testing.T) {
	for _, c := range []struct {
		name     string
		together bool
		holds    float64 // rates above it make one model of two 3% bad
		want     float64
		tried    int
	}{
		{"the search was right", false, 101, 100, 2},
		{"the search was too low", false, 104, 103, 3},
		{"the search was too high", false, 96, 94.26, 3},
		{"no rate at all", false, 0, 0, 156},
		{"all requests are judged together", true, 101, 109.27, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			tried := 0
			trial, err := confirm(100, 1, (&Contest{Together: c.together}).bad, func(rate float64) (*Trial, error) {
				tried++
				r := &loadgen.Result{Rate: rate, Measured: time.Second, Models: []loadgen.ModelResult{{Sent: 1000, Good: 1000}, {Sent: 100, Good: 100}}}
				if rate > c.holds {
					r.Models[1].Good = 97 // .3% of all requests
				}
				if rate > 110 {
					r.Models[0].Good = 900
				}
				return &Trial{Result: r}, nil
			})
			require.Equal(t, c.tried, tried)
			if c.want == 0 {
				require.ErrorContains(t, err, "no rate was confirmed")
				return
			}
			require.NoError(t, err)
			require.InDelta(t, c.want, trial.Rate, .01)
		})
	}
}

// TestServersOfAPlacement: a server has the models of its GPU only, and calls go where their model is.
func TestServersOfAPlacement(t *testing.T) {
	models := Copies(zoo.Profile{Model: "m", GPUType: zoo.A100, Alpha: time.Millisecond, SLO: time.Minute}, 3, 1, 4)
	tritons, err := StartTritons(t.Context(), TritonOptions{Models: models, GPUs: 2, Placement: [][]int{{0, 2}, {1, 2}}, Dynamic: &zoo.DynamicBatching{}})
	require.NoError(t, err)
	defer func() { require.NoError(t, tritons.Close()) }()
	require.Equal(t, [][]int{{0}, {1}, {0, 1}}, tritons.Serving())
	require.Error(t, modelsReady(t.Context(), tritons.Endpoints()[0], []string{"m-1"}))
	trial, err := Measure(t.Context(), tritons, loadgen.Load{Models: models.Load(), Rate: 100, Measure: time.Second / 2, Patience: time.Minute, Seed: 1})
	require.NoError(t, err)
	require.Zero(t, trial.Bad(), "a call of a server without its model fails")

	_, err = StartTritons(t.Context(), TritonOptions{Models: models, GPUs: 3, Placement: [][]int{{0}}})
	require.ErrorContains(t, err, "a placement on 1 GPUs, of which there are 3")
}

func TestSetupsSayWhatIsSpecial(t *testing.T) {
	for want, s := range map[string]Setup{
		"max_queue_delay 0s": TritonSetup{},
		"max_queue_delay 2ms, preferred_batch_size [4 8], queue timeout 50ms, REJECT, each model on 1 GPU, rate limiter, one execution per GPU": TritonSetup{
			DynamicBatching: zoo.DynamicBatching{MaxQueueDelay: 2 * time.Millisecond, PreferredBatchSizes: []int{4, 8}, QueueTimeout: 50 * time.Millisecond},
			Placement:       [][]int{{0}}, Placed: "each model on 1 GPU", RateLimiter: true,
		},
		"max_queue_delay 0s, one server for all GPUs, instances on any free GPU, 2 of each model, rate limiter, one execution per GPU": TritonSetup{Node: NodeFree, Instances: 2, RateLimiter: true},
		"late: drop": ConchSetup{},
		"late: drop, discipline timeout, max_queue_delay 2ms": ConchSetup{Discipline: "timeout", Parameters: map[string]string{"max_queue_delay": "2ms"}},
	} {
		require.Equal(t, want, s.String())
	}
}
