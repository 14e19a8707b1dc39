// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim/triton"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// ensemble is a server of three models, 10 ms an execution and 1 ms a row, and an ensemble of them.
func ensemble(slo time.Duration, steps ...triton.Step) triton.World {
	w := servers(1, 3, time.Millisecond, 10*time.Millisecond, time.Second, true, 0)
	w.Pipelines = []triton.Pipeline{{Name: "pipe", SLO: slo, Steps: steps}}
	return w
}

func TestAnEnsembleEndsWithItsLastStep(t *testing.T) {
	chain := []triton.Step{{Model: 0}, {Model: 1, After: []int{0}}, {Model: 2, After: []int{1}}}
	for _, c := range []struct {
		name       string
		slo        time.Duration
		steps      []triton.Step
		good, late uint64
		took       time.Duration
	}{
		{"a chain takes the sum", 40 * time.Millisecond, chain, 1, 0, 33 * time.Millisecond},
		{"its SLO is end to end", 30 * time.Millisecond, chain, 0, 1, 33 * time.Millisecond},
		{"branches take turns on the GPU", 40 * time.Millisecond, []triton.Step{{Model: 0}, {Model: 1, After: []int{0}}, {Model: 2, After: []int{0}}}, 1, 0, 33 * time.Millisecond},
		{"a model twice", 40 * time.Millisecond, []triton.Step{{Model: 0}, {Model: 0, After: []int{0}}}, 1, 0, 22 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := triton.Run(t.Context(), given(ensemble(c.slo, c.steps...), at(0, 3)))
			require.NoError(t, err)
			p := r.Pipelines[0]
			require.Equal(t, []uint64{1, c.good, c.late}, []uint64{p.Arrivals, p.Good, p.Late})
			require.InEpsilon(t, float64(c.took.Microseconds()), p.Latency.P99Us, .01)
			require.EqualValues(t, 1, r.Total.Arrivals, "a request of an ensemble is one")
			require.Equal(t, float64(c.late), r.WorstBadRate())
			require.Zero(t, r.Models[0].Arrivals, "steps are no requests of clients")
		})
	}
}

// TestStepsAreBatchedWithDirectRequests: what waits for a model goes together, whoever asked for it.
func TestStepsAreBatchedWithDirectRequests(t *testing.T) {
	w := ensemble(time.Second, triton.Step{Model: 0}, triton.Step{Model: 1, After: []int{0}})
	// The step of model 1 begins after 11 ms, while the request at 5 ms has waited for the GPU: they take turns, and the two later ones go together.
	r, err := triton.Run(t.Context(), given(w, at(0, 3), at(5, 1), at(12, 1)))
	require.NoError(t, err)
	require.Equal(t, []triton.Executions{{Rows: 1, Count: 1, Mean: 11 * time.Millisecond}}, r.Executions[0])
	require.EqualValues(t, 1, r.Models[1].Batches[1])
	require.EqualValues(t, 1, r.Models[1].Batches[2])
	require.EqualValues(t, 1, r.Pipelines[0].Good)
	require.EqualValues(t, 2, r.Models[1].Good)
}

// TestAnEnsembleIsOnServersWithAllItsModels: requests go nowhere else, and each comes back once, with steps of several rows and of none.
func TestAnEnsembleIsOnServersWithAllItsModels(t *testing.T) {
	w := servers(3, 2, time.Millisecond, 5*time.Millisecond, time.Second, true, 0)
	w.Servers[0].Latency[1] = nil
	w.Pipelines = []triton.Pipeline{{Name: "pipe", SLO: time.Second, Steps: []triton.Step{{Model: 0}, {Model: 1, After: []int{0}, Rows: .7}}}}
	var arrivals []workload.Arrival
	for i := range 200 {
		arrivals = append(arrivals, at(20*i, 2))
	}
	r, err := triton.Run(t.Context(), given(w, arrivals...))
	require.NoError(t, err)
	require.EqualValues(t, 200, r.Pipelines[0].Good)
	require.Zero(t, r.Partitions[0].Batches)
	require.Positive(t, r.Partitions[1].Batches)
	require.Positive(t, r.Partitions[2].Batches)
	require.Less(t, r.Executions[1][0].Count, uint64(200), "a step without rows does not run")

	w.Servers[1].Latency[0], w.Servers[2].Latency[0] = nil, nil
	_, err = triton.Run(t.Context(), given(w, at(0, 2)))
	require.ErrorIs(t, err, triton.ErrWorld)
	require.ErrorContains(t, err, "pipe needs a server with all its models")
}

// TestALimitedServerBatchesWhatAStepHasMade: with the rate limiter a GPU is given back when the answers of a batch are there, so that they go on together. Without
// it the instance of the next step, which has nothing to do, takes the first of them alone.
func TestALimitedServerBatchesWhatAStepHasMade(t *testing.T) {
	for limited, batches := range map[bool][]uint64{true: {1, 1}, false: {3, 0}} {
		w := ensemble(time.Second, triton.Step{Model: 0}, triton.Step{Model: 1, After: []int{0}})
		w.Servers[0].Limited = limited
		r, err := triton.Run(t.Context(), given(w, at(0, 3), at(1, 3), at(2, 3)))
		require.NoError(t, err)
		require.EqualValues(t, 3, r.Pipelines[0].Good)
		require.Equal(t, batches, r.Models[1].Batches[1:3], "limited: %v", limited)
	}
}
