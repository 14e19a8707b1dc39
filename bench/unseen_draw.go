// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// draw is a load that a seed gives: models, their arrivals and the GPUs that they share.
type draw struct {
	name     string
	scenario *scenario.Scenario // without a dispatch discipline
	capacity float64            // requests per second that the GPUs could execute in batches of a quarter of the SLO
	slowest  float64            // seconds: the longest SLO
	surges   bool
	part     float64 // trials are that many times as short; 0 means 1
}

// families of draws: each is a way to make loads hard.
var families = []struct {
	name  string
	build func(*drawing)
}{
	{"blocking", (*drawing).blocking}, {"classes", (*drawing).classes}, {"surges", (*drawing).surges}, {"mix", (*drawing).mix},
}

// drawLoad draws the load of a number under a seed. The families take turns.
func drawLoad(seed uint64, number int) draw {
	family := families[number%len(families)]
	d := &drawing{
		Rand: workload.Seed(seed, "unseen", strconv.Itoa(number)),
		load: draw{name: fmt.Sprintf("%s%02d", family.name, number)},
	}
	s := &scenario.Scenario{APIVersion: scenario.APIVersion, Name: d.load.name, Rate: 1}
	d.load.scenario = s
	d.gpus()
	family.build(d)
	if d.chance(.4) {
		s.Jitter = d.between(.005, .03)
	}
	return d.done()
}

// done puts the models into the scenario.
func (d *drawing) done() draw {
	s, busy := d.load.scenario, 0.0
	for i := range d.models {
		m := &d.models[i]
		s.Models = append(s.Models, m.scenario(d.types, s.Jitter))
		busy += m.weight * m.perRequest()
		d.load.slowest = max(d.load.slowest, m.slo)
		d.weights += m.weight
	}
	d.load.capacity = d.speed * d.weights / busy
	return d.load
}

// drawing is a draw in the making.
type drawing struct {
	*rand.Rand
	load    draw
	types   []float64 // by how much slower than the first each GPU type is
	speed   float64   // of all GPUs together, in GPUs of the first type
	models  []drawnModel
	weights float64
}

func (d *drawing) between(low, high float64) float64 { return low + (high-low)*d.Float64() }
func (d *drawing) log(low, high float64) float64 {
	return math.Exp(d.between(math.Log(low), math.Log(high)))
}
func (d *drawing) chance(p float64) bool { return d.Float64() < p }

// gpus draws 1 to 12 GPUs, one in four times of two types.
func (d *drawing) gpus() {
	n := 1 + d.IntN(12)
	d.types, d.speed = []float64{1}, float64(n)
	d.load.scenario.GPUs = []scenario.GPUs{{Type: "fast", Count: n}}
	if n > 1 && d.chance(.25) {
		slow, factor := 1+d.IntN(n-1), d.between(1.3, 2.5)
		d.types = append(d.types, factor)
		d.speed = float64(n-slow) + float64(slow)/factor
		d.load.scenario.GPUs = []scenario.GPUs{{Type: "fast", Count: n - slow}, {Type: "slow", Count: slow}}
	}
}

// drawnModel has times in seconds, on the first GPU type.
type drawnModel struct {
	name     string
	latency  []float64 // by rows from 1, one more than the largest batch
	slo      float64
	weight   float64
	rows     int
	arrivals scenario.Arrivals
}

// model draws a model whose l(1) and SLO over l(1) lie between bounds.
func (d *drawing) model(name string, alone, looseness [2]float64) *drawnModel {
	m := drawnModel{name: fmt.Sprintf("%s%d", name, len(d.models)), weight: 1, rows: 1}
	largest := 64
	if d.chance(.2) {
		largest = 2 << d.IntN(3)
	}
	single := d.log(alone[0], alone[1])
	row := single * (1 - d.between(.1, .97)) // what a further row takes
	shape, step := d.IntN(5), float64(int(2)<<d.IntN(3))
	for b := 1.0; b <= float64(largest+1); b++ {
		rows := b
		switch shape {
		case 0: // in steps, as padding makes them
			rows = step * math.Ceil(b/step)
		case 1: // flat up to a knee
			rows = max(b, step)
		}
		m.latency = append(m.latency, single+row*(rows-1))
	}
	if d.chance(.25) {
		m.rows = min(2+d.IntN(3), largest)
	}
	m.slo = max(d.log(looseness[0], looseness[1])*m.latency[0], 2*m.latency[m.rows-1])
	switch d.IntN(6) {
	case 0:
		m.arrivals.Shape = d.between(.05, .15)
	case 1:
		m.arrivals.Shape = .3
	}
	d.models = append(d.models, m)
	return &d.models[len(d.models)-1]
}

const ms = 1e-3

// blocking: batches of some models take longer than others can wait.
func (d *drawing) blocking() {
	for range 1 + d.IntN(2) {
		tight := d.model("tight", [2]float64{2 * ms, 8 * ms}, [2]float64{2, 5})
		heavy := d.model("heavy", [2]float64{15 * ms, 60 * ms}, [2]float64{4, 30})
		heavy.weight = d.log(.2, 1)
		if d.chance(.5) {
			tight.arrivals.Shape = 0
		}
	}
}

// classes: many models, from tight to loose.
func (d *drawing) classes() {
	for range 2 + d.IntN(3) {
		d.model("tight", [2]float64{2 * ms, 10 * ms}, [2]float64{2, 6}).weight = d.log(1, 4)
		d.model("medium", [2]float64{5 * ms, 20 * ms}, [2]float64{5, 30}).weight = d.log(.5, 2)
		d.model("loose", [2]float64{5 * ms, 40 * ms}, [2]float64{20, 300}).weight = d.log(.25, 1)
	}
}

// surges: the rates of several models rise together for a while, again and again.
func (d *drawing) surges() {
	d.load.surges = true
	steps := surges(d.between(1.4, 3), d.between(.3, 1.5), d.between(4, 8))
	for i := range 2 + d.IntN(4) {
		m := d.model("m", [2]float64{4 * ms, 25 * ms}, [2]float64{3, 12})
		m.weight = d.log(.5, 2)
		if i < 2 || d.chance(.7) {
			m.arrivals.Steps = steps
		}
	}
}

// surges multiplies a rate for a while, again and again; times are in seconds.
func surges(factor, length, every float64) []scenario.Step {
	steps := []scenario.Step{{Factor: 1}}
	for at := every / 2; at < longestTrial; at += every {
		steps = append(steps, scenario.Step{From: duration(at), Factor: factor}, scenario.Step{From: duration(at + length), Factor: 1})
	}
	return steps
}

// mix: anything.
func (d *drawing) mix() {
	for range 1 + d.IntN(7) {
		d.model("m", [2]float64{2 * ms, 50 * ms}, [2]float64{2, 300}).weight = d.log(.3, 3)
	}
}

// longestSLO bounds SLOs, in seconds: a trial must be much longer.
const longestSLO = 4

// scenario is the model on every GPU type. Deadlines are planned with one deviation more than the mean.
func (m *drawnModel) scenario(types []float64, jitter float64) scenario.Model {
	m.slo = min(m.slo, longestSLO)
	model := scenario.Model{
		Name: m.name, SLO: scenario.Duration(m.slo * float64(time.Second)), Late: "drop", MaxBatch: uint32(len(m.latency) - 1), Weight: m.weight, Arrivals: &m.arrivals,
	}
	m.arrivals.Rows = int32(m.rows)
	for i, factor := range types {
		p := scenario.Profile{GPUType: []string{"fast", "slow"}[i]}
		for b, l := range m.latency {
			p.Points = append(p.Points, scenario.Point{Batch: uint32(b + 1), Latency: duration(l * factor), Upper: duration(l * factor * (1 + jitter))})
		}
		model.Profiles = append(model.Profiles, p)
	}
	return model
}

// perRequest is how long a request takes, in the largest batch that runs within a quarter of the SLO.
func (m *drawnModel) perRequest() float64 {
	best := m.latency[m.rows-1]
	for b := m.rows; b < len(m.latency); b += m.rows {
		if m.latency[b-1] <= m.slo/4 {
			best = min(best, m.latency[b-1]*float64(m.rows)/float64(b))
		}
	}
	return best
}
