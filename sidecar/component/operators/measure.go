// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package operators

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/observe"
)

// toMeasure is a model on the server that times it.
type toMeasure struct {
	model, gpuType, partition string
	server                    tritonpb.GRPCInferenceServiceClient
	config                    *tritonpb.ModelConfig
	enough                    time.Duration // the model's SLO
	atOnce                    int           // batches that the server executes at once
}

// Measure implements admin.API: of each model and type of GPU one server times it. Servers work side by side, and so do as many models of a server as it
// executes batches at once.
func (v view) Measure(ctx context.Context, r api.MeasureRequest) ([]api.Measured, error) {
	if v.o.Others == nil || !v.o.Control.PassingThrough() {
		return v.API.Measure(ctx, r)
	}
	if err := admin.CheckMeasure(r); err != nil {
		return nil, err
	}
	types := map[string]string{}
	for _, g := range admin.GPUs(v.o.Control.Look()) {
		types[g.ID] = g.Type
	}
	slos := map[string]time.Duration{}
	for _, m := range v.o.Control.LookAtModels() {
		slos[m.Files.Name] = time.Duration(m.Model.GetSloUs()) * time.Microsecond
	}
	byServer, err := v.share(ctx, r.Models, types, slos)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	all := []api.Measured{}
	for _, list := range byServer {
		wg.Go(func() {
			within := time.Duration(r.WithinSeconds * float64(time.Second))
			warmup.InTurns(ctx, len(list), list[0].atOnce, within, func(ctx context.Context, model int) {
				measured := list[model].measure(ctx, r)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, measured)
			})
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b api.Measured) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.GPUType, b.GPUType))
	})
	return all, nil
}

// share deals the models out to the servers that have them, so that each server has as few as possible.
func (v view) share(ctx context.Context, models []string, types map[string]string, slos map[string]time.Duration) (map[string][]toMeasure, error) {
	type kind struct{ model, gpuType string }
	serving := map[kind][]toMeasure{}
	var kinds []kind
	err := v.o.Others.Driver.Each(ctx, func(_ context.Context, e driver.EndpointState, server tritonpb.GRPCInferenceServiceClient) error {
		for _, m := range e.Models {
			if len(models) > 0 && !slices.Contains(models, m.Name) {
				continue
			}
			k := kind{m.Name, types[e.GPU]}
			if serving[k] == nil {
				kinds = append(kinds, k)
			}
			serving[k] = append(serving[k], toMeasure{m.Name, k.gpuType, e.GPU, server, m.Config, slos[m.Name], e.AtOnce})
		}
		return nil
	})
	byServer := map[string][]toMeasure{}
	for _, k := range kinds {
		least := slices.MinFunc(serving[k], func(a, b toMeasure) int {
			return cmp.Compare(len(byServer[a.partition]), len(byServer[b.partition]))
		})
		byServer[least.partition] = append(byServer[least.partition], least)
	}
	return byServer, err
}

// statisticsWithin is how long a server may take to say what it counted.
const statisticsWithin = 2 * time.Second

func (m toMeasure) measure(ctx context.Context, r api.MeasureRequest) api.Measured {
	out := api.Measured{Model: m.model, GPUType: m.gpuType, Partition: m.partition}
	var counters observe.ServerStatistics
	executed := func() []observe.Executions {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statisticsWithin) // what was counted until the time was up counts
		defer cancel()
		r, err := m.server.ModelStatistics(ctx, &tritonpb.ModelStatisticsRequest{Name: m.model})
		if err != nil {
			return nil
		}
		return counters.Since(r.GetModelStats())[m.model]
	}
	executed() // what the server did before
	timed, skipped, err := warmup.Paced(ctx, m.server, m.config, warmup.Pace{
		Share: r.Share, Repeats: r.Repeats, Enough: m.enough, Now: time.Now, Sleep: sleep,
	})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && len(timed) == 0:
		skipped = "no batch of it was answered before the time was up"
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		skipped = fmt.Sprintf("the time was up before all sizes had been sent %d times; the largest batch that was answered had %d rows", r.Repeats, timed[len(timed)-1].Rows)
	case err != nil:
		skipped = err.Error()
	}
	out.Skipped = skipped
	// What the server itself counted meanwhile is better than a round trip, which waits in its queue: its batches have generated and clients' rows.
	counted := executed()
	slices.SortFunc(counted, func(a, b observe.Executions) int { return cmp.Compare(a.Rows, b.Rows) })
	for _, e := range counted {
		out.Executions = append(out.Executions, api.MeasuredBatch{Rows: e.Rows, Seconds: e.Mean.Seconds(), Repeats: int(e.Count)})
	}
	for _, b := range timed {
		out.Batches = append(out.Batches, api.MeasuredBatch{Rows: b.Rows, Seconds: b.Duration.Seconds(), Repeats: b.Repeats})
	}
	return out
}

// sleep returns early when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
