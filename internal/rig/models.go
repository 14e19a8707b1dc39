// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/zoo"
)

// Models is a set of emulated models to serve.
type Models struct {
	list []zoo.Model
	// parts are models that those of the list call, as the steps of ensembles; no client asks for them.
	parts []zoo.Model
	// path is how many emulated steps make an answer, one after the other; 0 means 1.
	path int
}

// Zoo is the published models of these names on this GPU type, with all times and SLOs multiplied by stretch.
func Zoo(gpuType string, stretch float64, maxBatch int, names ...string) (Models, error) {
	var m Models
	for _, name := range names {
		p, err := zoo.Lookup(gpuType, name)
		if err != nil {
			return Models{}, fmt.Errorf("rig: %w", err)
		}
		m.list = append(m.list, zoo.Model{Name: name, Profile: p.Stretched(stretch), MaxBatchSize: maxBatch, ModelPy: pymodels.Emulate})
	}
	return m, nil
}

// Emulated is these models, with times and SLOs as they are.
func Emulated(models ...zoo.Model) Models {
	for i := range models {
		models[i].ModelPy = pymodels.Emulate
	}
	return Models{list: models}
}

// Copies is n models of one profile, named after it.
func Copies(p zoo.Profile, n int, stretch float64, maxBatch int) Models {
	var m Models
	for i := range n {
		m.list = append(m.list, zoo.Model{
			Name: fmt.Sprintf("%s-%d", p.Model, i), Profile: p.Stretched(stretch), MaxBatchSize: maxBatch, ModelPy: pymodels.Emulate,
		})
	}
	return m
}

// FineTunes is n models of one backbone, which a merge group can serve: emulated like Copies, and computed by graphs whose heads differ.
// Head is what a head costs of the backbone's time.
func FineTunes(p zoo.Profile, n int, head, stretch float64, maxBatch int) (Models, error) {
	m := Copies(p, n, stretch*(1+head), maxBatch)
	for i := range m.list {
		g := graphs.FineTune(i, 16)
		graph, err := onnx.Marshal(g.Model, g)
		if err != nil {
			return Models{}, fmt.Errorf("rig: %w", err)
		}
		m.list[i].Graph, m.list[i].Profile.SLO = graph, time.Duration(stretch*float64(p.SLO))
	}
	return m, nil
}

// Plain are the models without their graphs: what they compute is the same, and an instance takes less memory.
func (m Models) Plain() Models {
	m.list = slices.Clone(m.list)
	for i := range m.list {
		m.list[i].Graph = nil
	}
	return m
}

// Ensembles are n fine-tunes like those of FineTunes, each as an ensemble of Triton's: of a backbone that all of them call, and a head of its
// own. Triton's dynamic batcher joins the requests of all members at the backbone.
func Ensembles(p zoo.Profile, n int, head, stretch float64, maxBatch int) (Models, error) {
	m := Copies(p, n, stretch*(1+head), maxBatch)
	g := graphs.Pass(16)
	pass, err := onnx.Marshal(g.Model, g)
	if err != nil {
		return Models{}, fmt.Errorf("rig: %w", err)
	}
	part := func(name string, times float64, graph []byte) zoo.Model {
		of := p.Stretched(times)
		of.SLO = 0
		return zoo.Model{Name: name, Profile: of, MaxBatchSize: maxBatch, ModelPy: pymodels.Emulate, Graph: graph}
	}
	m.parts = []zoo.Model{part("backbone", stretch, nil)}
	for i := range m.list {
		name := fmt.Sprintf("head-%d", i)
		m.parts = append(m.parts, part(name, stretch*head, pass))
		m.list[i].Steps, m.list[i].Profile.SLO = []zoo.Step{{Model: "backbone"}, {Model: name, After: []int{0}}}, time.Duration(stretch*float64(p.SLO))
	}
	return m, nil
}

// Pipeline is one ensemble, of the given steps in their order: lines l(b) = beta + alpha*b, times and the SLO as they are. A step whose results several steps
// make has so many inputs. The first output of steps that no other takes is what answers are checked by.
func Pipeline(name string, slo time.Duration, maxBatch int, steps []zoo.Step, lines map[string]zoo.Profile) Models {
	m := Models{list: []zoo.Model{{Name: name, Profile: zoo.Profile{Model: name, SLO: slo}, MaxBatchSize: maxBatch, Steps: steps}}}
	for _, step := range steps {
		p := lines[step.Model]
		p.Model = step.Model
		m.parts = append(m.parts, zoo.Model{Name: step.Model, Profile: p, MaxBatchSize: maxBatch, ModelPy: pymodels.Emulate, Inputs: len(step.After)})
	}
	m.path = firstPath(steps)
	return m
}

// firstPath is how many steps make the ensemble's first output, one after the other: of its inputs, what is emulated reads the first.
func firstPath(steps []zoo.Step) (path int) {
	taken := make([]bool, len(steps))
	for _, step := range steps {
		for _, before := range step.After {
			taken[before] = true
		}
	}
	at := slices.Index(taken, false)
	for path = 1; len(steps[at].After) > 0; path++ {
		at = steps[at].After[0]
	}
	return path
}

// Instant is one model that takes no time, with rows of so many FP32 elements.
func Instant(name string, elements, maxBatch int) Models {
	return Models{list: []zoo.Model{{
		Name: name, Profile: zoo.Profile{Model: name, GPUType: zoo.A100, SLO: time.Second}, MaxBatchSize: maxBatch, Dims: []int64{int64(elements)},
		ModelPy: pymodels.Emulate,
	}}}
}

// Overlapping are the models with this part of beta beside other executions of the same GPU (zoo.Model.Overlap).
func (m Models) Overlapping(part float64) Models {
	m.list = slices.Clone(m.list)
	for i := range m.list {
		m.list[i].Overlap = part
	}
	return m
}

// tensor is a row of the models' input.
func (m Models) tensor() loadgen.Tensor {
	elements := 16
	if len(m.list) > 0 && len(m.list[0].Dims) > 0 {
		elements = int(m.list[0].Dims[0])
	}
	t := loadgen.Emulated(elements)
	for range m.path - 1 {
		once := loadgen.Emulated(elements)
		t.Scale, t.Shift = once.Scale*t.Scale, once.Scale*t.Shift+once.Shift
	}
	return t
}

// Names lists the models.
func (m Models) Names() []string {
	var names []string
	for _, model := range m.list {
		names = append(names, model.Name)
	}
	return names
}

// Latency is what an execution of so many rows of the first model takes at the whole GPU.
func (m Models) Latency(rows int) time.Duration { return m.list[0].Profile.Latency(rows) }

// Load is the models as the load generator wants them, all with equal weight.
func (m Models) Load() []loadgen.Model {
	var list []loadgen.Model
	for _, model := range m.list {
		list = append(list, loadgen.Model{Name: model.Name, SLO: model.Profile.SLO})
	}
	return list
}

// batching is how Triton itself is asked to schedule the models.
type batching struct {
	dynamic    *zoo.DynamicBatching // nil: none
	takesTurns bool
	maxBatch   int                      // 0: the models' own
	instances  int                      // of each model; 0: 1
	onGPUs     func(model int) []string // the GPUs that instances are bound to, in order; nil: to none
}

// apply has a model scheduled so.
func (b batching) apply(m *zoo.Model, index int) {
	m.Dynamic, m.TakesTurns, m.Instances = b.dynamic, b.takesTurns, b.instances
	if b.maxBatch > 0 {
		m.MaxBatchSize = min(m.MaxBatchSize, b.maxBatch)
	}
	if b.onGPUs != nil {
		m.OnGPUs = b.onGPUs(index)
	}
}

// Write writes a model repository of the models.
func (m Models) Write(directory string) error { return m.write(directory, nil, batching{}) }

// write writes a model repository of the models whose indexes are given; nil means all of them.
func (m Models) write(directory string, only []int, how batching) error {
	for i, model := range m.parts {
		how.apply(&model, i)
		if err := zoo.Write(directory, model); err != nil {
			return fmt.Errorf("rig: %w", err)
		}
	}
	for i, model := range m.list {
		if only != nil && !slices.Contains(only, i) {
			continue
		}
		how.apply(&model, i)
		if err := zoo.Write(directory, model); err != nil {
			return fmt.Errorf("rig: %w", err)
		}
	}
	return nil
}

// busy is the GPU time that executions of the models took: l(b) is linear, so their number and their rows are enough.
func (m Models) busy(u Usage) time.Duration {
	var sum time.Duration
	for _, model := range m.list {
		c := u[model.Name]
		sum += time.Duration(c.Executions)*model.Profile.Beta + time.Duration(c.Rows)*model.Profile.Alpha
	}
	return sum
}
