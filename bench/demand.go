// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// The load of the demand benchmark: many models, asked for by Zipf's law with this
// exponent, and memory for a part of them.
const (
	demandModels   = 40
	demandFit      = 10
	demandExponent = 1.0
	demandRate     = 1.5 // requests per second: loads are processes that start, on the machine's own cores
	demandPatience = 3 * time.Minute
)

// demand measures load on demand on a real tritonserver: how many requests find
// their model loaded, and how long those take that do not.
func (b *bench) demand(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench`, or say --tritonserver")
	}
	r.Emulated = "the GPU, its memory and the models' times; a model's load is that of a process of Triton's python backend"
	models := rig.Copies(zoo.Profile{Model: "m", GPUType: zoo.A100, Alpha: time.Millisecond, Beta: 5 * time.Millisecond, SLO: time.Second}, demandModels, 1, 8)
	settings := map[string]any{}
	load := models.Load()
	for i, name := range models.Names() {
		settings[name] = map[string]any{"memory": fmt.Sprintf("%dMiB", 80<<10/demandFit-64)} // of 80 GiB, and something for the tensors
		load[i].Weight = math.Pow(float64(i+1), -demandExponent)
	}
	c, err := rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Server: b.server, Models: models, GPUs: 1, Settings: map[string]any{
			"defaults": map[string]any{"load": "demand"}, "models": settings, "demand": map[string]any{"wait": demandPatience.String()},
		},
	})
	if err != nil {
		return err
	}
	err = b.demandOn(ctx, r, c, load)
	return errors.Join(err, c.Close())
}

func (b *bench) demandOn(ctx context.Context, r *figure.Report, c *rig.Conch, load []loadgen.Model) error {
	caller, err := loadgen.NewGRPC(c.Endpoints(), load, loadgen.Emulated(16))
	if err != nil {
		return err
	}
	defer caller.Close()
	warm, measure := time.Minute, 2*time.Minute // first everything is cold
	if b.quick {
		warm, measure = 20*time.Second, 20*time.Second
	}
	b.say(fmt.Sprintf("%d models, memory for %d, %v of %g requests a second", demandModels, demandFit, measure, demandRate))
	offer := func(measure time.Duration, seed uint64) (*loadgen.Result, error) {
		return loadgen.Run(ctx, loadgen.Load{
			Models: load, Rate: demandRate, Measure: measure, Patience: demandPatience, Seed: seed, Log: true,
		}, caller, minitriton.SystemClock())
	}
	if _, err := offer(warm, b.seed+1); err != nil {
		return err
	}
	before, err := requestsByResult(ctx, c)
	if err != nil {
		return err
	}
	result, err := offer(measure, b.seed)
	if err != nil {
		return err
	}
	failed, wrong, first := result.Faults()
	counted, err := requestsByResult(ctx, c)
	if err != nil {
		return err
	}
	all, cold := float64(len(result.Log)), counted["cold"]-before["cold"]
	if cold == 0 || failed+wrong > 0 {
		b.say(fmt.Sprintf("%d failed, %d wrong, %g cold: %v", failed, wrong, cold, first))
	}
	latencies := make([]float64, 0, len(result.Log))
	for _, e := range result.Log {
		latencies = append(latencies, e.Latency.Seconds())
	}
	slices.Sort(latencies)
	// Which requests waited for a load only conch knows. They are the slowest, or
	// faster than those: as many of the slowest say at most too much.
	slowest := latencies[len(latencies)-min(len(latencies), int(cold)):]
	r.Add("demand.requests", all, "req", fmt.Sprintf("%d models asked for by Zipf's law (exponent %g), memory for %d", demandModels, demandExponent, demandFit))
	r.Add("demand.errors", float64(failed+wrong), "req", "not answered, or wrongly")
	r.Add("demand.hit_rate", 1-cold/all, "ratio", "requests that found their model loaded")
	r.Add("demand.cold.p50_s", quantileOf(slowest, .5), "s", "from the request to its answer, of the slowest, as many as waited for a load")
	r.Add("demand.cold.p99_s", quantileOf(slowest, .99), "s", "")
	r.Add("demand.warm.p50_ms", 1e3*quantileOf(latencies[:len(latencies)-len(slowest)], .5), "ms", "of the others")
	return nil
}

// quantileOf is a quantile of sorted values; 0 where there are none.
func quantileOf(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, max(0, int(math.Ceil(q*float64(len(sorted))))-1))]
}

// requestsByResult reads conch_requests_total.
func requestsByResult(ctx context.Context, c *rig.Conch) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Metrics+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, err
	}
	sums := map[string]float64{}
	for _, m := range families["conch_requests_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "result" {
				sums[l.GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	return sums, nil
}
