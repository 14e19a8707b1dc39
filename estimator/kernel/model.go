// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/regress"
)

// Model corrects the roofline: what was learnt from measured kernels of all GPUs together.
type Model struct {
	// Products and Rows predict the logarithm of measured over bound.
	Products *regress.Stack `json:"products"`
	Rows     *regress.Stack `json:"rows"`
	// Convolutions, Directs and Moves are there where such kernels were measured one by one; without them convolutions are corrected as products are.
	Convolutions *regress.Stack `json:"convolutions,omitempty"`
	Directs      *regress.Stack `json:"directs,omitempty"`
	Moves        *regress.Stack `json:"moves,omitempty"`
	// Measured are the GPU types that the samples came from.
	Measured []string `json:"measured"`
}

// stacks are the model's regressors with the features that each takes.
func (m *Model) stacks() []part {
	return []part{
		{"products", &m.Products, productNames, false}, {"rows", &m.Rows, rowNames, false},
		{"convolutions", &m.Convolutions, productNames, true}, {"directs", &m.Directs, productNames, true}, {"moves", &m.Moves, moveNames, true},
	}
}

type part struct {
	name     string
	stack    **regress.Stack
	features []string
	optional bool
}

// Check says whether a model that was read from a file can predict.
func (m *Model) Check() error {
	for _, p := range m.stacks() {
		stack := *p.stack
		if stack == nil && p.optional {
			continue
		}
		if stack == nil {
			return fmt.Errorf("kernel: model has no %s", p.name)
		}
		if !slices.Equal(stack.Names, p.features) {
			return fmt.Errorf("kernel: %s were fitted on features %v, this build computes %v: train again", p.name, stack.Names, p.features)
		}
		if err := stack.Check(); err != nil {
			return fmt.Errorf("kernel: %s: %w", p.name, err)
		}
	}
	return nil
}

// of is the regressor of a family, nil if there is none.
func (m *Model) of(f Family) *regress.Stack {
	switch f {
	case Product:
		return m.Products
	case Convolution:
		if m.Convolutions != nil {
			return m.Convolutions
		}
		return m.Products
	case Direct:
		return m.Directs
	case Move:
		return m.Moves
	}
	return m.Rows
}

func features(k *Kernel, g *gpu.Sheet, b *Bound, row []float64) []float64 {
	switch k.Family {
	case Product, Convolution, Direct:
		return productFeatures(k, g, b, row)
	}
	row = rowFeatures(k, g, b, row)
	if k.Family == Move {
		row = append(row, log(k.FLOPs/k.Bytes()+.01))
	}
	return row
}

// Correction is the factor on the bound of a kernel that has the whole GPU. Row is scratch.
func (m *Model) Correction(k *Kernel, g *gpu.Sheet, b *Bound, row []float64) float64 {
	if !(b.Seconds > 0) || k.Bytes() <= 0 {
		return 1
	}
	stack := m.of(k.Family)
	if stack == nil {
		return 1
	}
	// No kernel beats its roof by much, and none that was measured is more than fifty times slower.
	return math.Exp(min(max(stack.Predict(features(k, g, b, row)), -.5), 4))
}

// Measurement is a kernel that was timed on a GPU with nothing else on it.
type Measurement struct {
	Kernel  Kernel
	GPU     *gpu.Sheet
	Seconds float64
	// Group is what is left out together with it; empty is the GPU type.
	Group string
}

// Train fits the correction to measurements. Groups, which are whole GPU types unless a measurement says otherwise, are left out in turn; that weighs the
// regressors and gives the error for types without measurements.
func Train(all []Measurement, seed uint64) (*Model, error) {
	m := &Model{}
	samples := map[**regress.Stack]*regress.Samples{}
	for _, p := range m.stacks() {
		samples[p.stack] = &regress.Samples{Names: p.features}
	}
	seen := map[string]bool{}
	for i := range all {
		measured := &all[i]
		b := Roofline(&measured.Kernel, measured.GPU, 1, 1)
		into := samples[m.slot(measured.Kernel.Family)]
		into.X = append(into.X, features(&measured.Kernel, measured.GPU, &b, nil))
		into.Y = append(into.Y, math.Log(measured.Seconds/b.Seconds))
		into.Groups = append(into.Groups, cmp.Or(measured.Group, measured.GPU.Name))
		if !seen[measured.GPU.Name] {
			seen[measured.GPU.Name] = true
			m.Measured = append(m.Measured, measured.GPU.Name)
		}
	}
	for _, p := range m.stacks() {
		s := samples[p.stack]
		if len(s.X) == 0 && p.optional {
			continue
		}
		o := regress.Options{Seed: seed, Boost: regress.BoostOptions{Trees: 250, Depth: 4}}
		if p.name == "rows" || p.name == "moves" {
			o = regress.Options{Seed: seed, Centres: 64, Boost: regress.BoostOptions{Trees: 100, Depth: 3}}
		}
		var err error
		if *p.stack, err = regress.Fit(s, o); err != nil {
			return nil, fmt.Errorf("kernel: %s: %w", p.name, err)
		}
	}
	return m, nil
}

func (m *Model) slot(f Family) **regress.Stack {
	switch f {
	case Product:
		return &m.Products
	case Convolution:
		return &m.Convolutions
	case Direct:
		return &m.Directs
	case Move:
		return &m.Moves
	}
	return &m.Rows
}
