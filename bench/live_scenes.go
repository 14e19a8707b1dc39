// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// liveScene is a load for one policy, small enough for real tritonservers on two cores: at most eight partitions and 300 executions a second.
type liveScene struct {
	name       string // where several policies meet in it
	policy     string
	parameters map[string]string
	gpus       int
	// rates by model, in req/s; times and rates are as published, before the stretch. Of a scene with an app they are the app's, under its name.
	rates map[string]float64
	app   *liveApp
	// overload multiplies the rates once the plan serves.
	overload float64
	stretch  float64
}

// liveApp is an app of the scene: its models are variants, each with its accuracy.
type liveApp struct {
	name     string
	accuracy float64 // that requests wish for
	slo      float64 // ms
	variants map[string]float64
}

// liveScenes are offered twice: the rates that the plan was made for, and so much more that some requests are bad. Where none is, live and simulated
// agree whatever is wrong.
func liveScenes() []liveScene {
	return []liveScene{
		// gpulet's first scenario, in its proportions.
		{policy: "gpulet", gpus: 3, overload: 1.8, rates: map[string]float64{"googlenet": 600, "bert": 600, "mnasnet1_0": 300, "mobilenet_v2": 300}},
		{policy: "usher", gpus: 3, overload: 1.9, rates: map[string]float64{"googlenet": 400, "resnet50": 200, "vgg16": 100, "mobilenet_v2": 400}},
		{policy: "symphony", parameters: map[string]string{"sub_clusters": "2"}, gpus: 3, overload: 1.6, rates: map[string]float64{"googlenet": 600, "resnet50": 300, "mnasnet1_0": 300, "vgg16": 75}},
		{policy: "infaas", parameters: map[string]string{"gpu_share": "50"}, gpus: 2, overload: 1.6, rates: map[string]float64{"classify": 1000}, app: &liveApp{
			name: "classify", accuracy: .75, slo: 108, variants: map[string]float64{"mobilenet_v2": .72, "resnet50": .76, "densenet161": .78},
		}},
		// A tight model beside heavy ones, each of whose batches it cannot wait for.
		{policy: "conch", gpus: 3, overload: 2, rates: map[string]float64{"bert": 800, "vgg16": 200, "densenet161": 200}},
	}
}

// liveGPU is the type of the emulated GPUs, liveMemory what each has.
const (
	liveGPU    = "2080Ti"
	liveMemory = 11 << 30
	// modelMemory is what a loaded model takes.
	modelMemory = 400 << 20
)

// models of the scene, stretched: of the nine of gpulet's study, with l(b, share) = (beta + alpha*b) * knee/min(share, knee), so that a batch of 32
// takes half of the SLO at the whole GPU and a batch of none 15% of that.
func (s liveScene) models() []zoo.Model {
	var all []zoo.Model
	for _, m := range nine {
		_, loaded := s.rates[m.name]
		if s.app != nil {
			_, loaded = s.app.variants[m.name]
		}
		if !loaded {
			continue
		}
		full := m.slo * float64(time.Millisecond) / 2
		p := zoo.Profile{Model: m.name, GPUType: liveGPU, Alpha: time.Duration(.85 * full / 32), Beta: time.Duration(.15 * full), SLO: time.Duration(2 * full)}
		all = append(all, zoo.Model{
			Name: m.name, Profile: p.Stretched(s.stretch), MaxBatchSize: 32, Knee: int(m.knee), L2: m.l2, Bandwidth: m.dram, Mreq: float64(modelMemory) / liveMemory, Declare: true,
		})
	}
	return all
}

// load is what clients ask for: the models by their names, or the app.
func (s liveScene) load() []loadgen.Model {
	if s.app != nil {
		return []loadgen.Model{{Name: s.app.name, SLO: s.times(s.app.slo)}}
	}
	return rig.Emulated(s.models()...).Load()
}

// times is so many published milliseconds, stretched.
func (s liveScene) times(ms float64) time.Duration {
	return time.Duration(s.stretch * ms * float64(time.Millisecond))
}

// arrivals at so many times the rates are Poisson, for each name from a generator of its own.
func (s liveScene) arrivals(seed uint64, times float64, length time.Duration) ([]loadgen.Arrival, error) {
	var all []loadgen.Arrival
	for i, m := range s.load() {
		stream, err := workload.Renewal{Model: int32(i), Curve: workload.Constant(times * s.rates[m.Name] / s.stretch), Random: workload.Seed(seed, "arrivals", m.Name)}.Stream()
		if err != nil {
			return nil, err
		}
		for a := (workload.Arrival{}); stream.Next(&a) && a.At < length; {
			all = append(all, loadgen.Arrival{At: a.At, Model: i})
		}
	}
	slices.SortStableFunc(all, func(a, b loadgen.Arrival) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}

// profiles are what the models' profile files declare.
func (s liveScene) profiles() []*policy.Profile {
	var all []*policy.Profile
	known := func(v float64) *policy.Estimate { return &policy.Estimate{Value: v} }
	for _, m := range s.models() {
		p := &policy.Profile{Model: m.Name, GpuType: liveGPU, Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED}
		for _, q := range m.Grid() {
			us := float64(q.Latency) / float64(time.Microsecond)
			p.Points = append(p.Points, &policy.ProfilePoint{
				Batch: uint32(q.Batch), ThreadPercentage: uint32(q.Share), LatencyUs: known(us), LatencyUpperUs: us, //nolint:gosec // small
				Creq: known(q.Creq), Mreq: known(q.Mreq), L2Utilization: known(q.L2), BandwidthUtilization: known(q.Bandwidth),
			})
		}
		all = append(all, p)
	}
	return all
}

// snapshot is the scene's world as a live conch's policy sees it, before conch has learnt anything.
func (s liveScene) snapshot() *policy.Snapshot {
	out := &policy.Snapshot{
		Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n"}}, Profiles: s.profiles(), Interference: []*policy.Interference{policy.GpuletInterference(liveGPU)},
	}
	for i := range s.gpus {
		out.Nodes[0].Gpus = append(out.Nodes[0].Gpus, &policy.GPU{
			Id: fmt.Sprintf("gpu%d", i), Type: liveGPU, Index: uint32(i), MemoryBytes: liveMemory, CostPerHour: 1, Emulated: true, //nolint:gosec // small
		})
	}
	for _, m := range s.models() {
		out.Models = append(out.Models, &policy.Model{
			Name: m.Name, SloUs: m.Profile.SLO.Microseconds(), MaxBatchSize: uint32(m.MaxBatchSize), Batchable: true, MemoryBytes: modelMemory, Burstiness: 1, //nolint:gosec // small
			Late: policy.LatePolicy_LATE_POLICY_DROP, Rate: s.rates[m.Name] / s.stretch, RowRate: s.rates[m.Name] / s.stretch,
		})
	}
	if a := s.app; a != nil {
		app := &policy.App{Name: a.name, MinimumAccuracy: a.accuracy, SloUs: s.times(a.slo).Microseconds(), Rate: s.rates[a.name] / s.stretch}
		for _, m := range s.models() {
			app.Variants = append(app.Variants, &policy.Variant{Model: m.Name, Accuracy: a.variants[m.Name], CostPerHour: variantCost(m.Name)})
		}
		out.Apps = append(out.Apps, app)
	}
	return out
}

// variantCost is what an instance of a variant costs: the models' order by their batches' times.
func variantCost(model string) float64 {
	return float64(1 + slices.Index([]string{"mobilenet_v2", "resnet50", "densenet161"}, model))
}

// settings of conch.yaml for the scene.
func (s liveScene) settings() map[string]any {
	models := map[string]any{}
	for _, m := range s.models() {
		models[m.Name] = map[string]any{"memory": modelMemory}
	}
	c := policy.GpuletInterference(liveGPU)
	out := map[string]any{
		"mode":         "advise", // nothing but what is ordered
		"gpus":         []map[string]any{{"type": liveGPU, "count": s.gpus, "emulated": true, "memory": liveMemory, "costPerHour": 1}},
		"policy":       map[string]any{"name": "static", "deadline": "30s", "evaluations": 64},
		"models":       models,
		"interference": []map[string]any{{"type": liveGPU, "l2Self": c.GetL2Self(), "l2Other": c.GetL2Other(), "bandwidthSelf": c.GetBandwidthSelf(), "bandwidthOther": c.GetBandwidthOther(), "constant": c.GetConstant()}},
	}
	if a := s.app; a != nil {
		var variants []map[string]any
		for _, m := range s.models() {
			variants = append(variants, map[string]any{"model": m.Name, "accuracy": a.variants[m.Name], "costPerHour": variantCost(m.Name)})
		}
		out["apps"] = map[string]any{a.name: map[string]any{"accuracy": a.accuracy, "slo": s.times(a.slo).String(), "variants": variants}}
	}
	return out
}
