// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/regress"
)

// Model corrects the roofline: what was learnt from measured kernels of all GPUs together.
type Model struct {
	// Products and Rows predict the logarithm of measured over bound.
	Products *regress.Stack `json:"products"`
	Rows     *regress.Stack `json:"rows"`
	// Measured are the GPU types that the samples came from.
	Measured []string `json:"measured"`
}

// Check says whether a model that was read from a file can predict.
func (m *Model) Check() error {
	for _, s := range []struct {
		name  string
		stack *regress.Stack
		want  []string
	}{{"products", m.Products, productNames}, {"rows", m.Rows, rowNames}} {
		if s.stack == nil {
			return fmt.Errorf("kernel: model has no %s", s.name)
		}
		if fmt.Sprint(s.stack.Names) != fmt.Sprint(s.want) {
			return fmt.Errorf("kernel: %s were fitted on features %v, this build computes %v: train again", s.name, s.stack.Names, s.want)
		}
		if err := s.stack.Check(); err != nil {
			return fmt.Errorf("kernel: %s: %w", s.name, err)
		}
	}
	return nil
}

// Correction is the factor on the bound of a kernel that has the whole GPU. Row is scratch.
func (m *Model) Correction(k *Kernel, g *gpu.Sheet, b *Bound, row []float64) float64 {
	if !(b.Seconds > 0) || k.Bytes() <= 0 {
		return 1
	}
	var l float64
	switch k.Family {
	case Product, Convolution:
		l = m.Products.Predict(productFeatures(k, g, b, row))
	case Unary, Binary, Power, Softmax, Norm:
		l = m.Rows.Predict(rowFeatures(k, g, b, row))
	default:
		return 1
	}
	// No kernel beats its roof, and none that was measured is twenty times slower.
	return math.Exp(min(max(l, -.05), 3))
}

// Measurement is a kernel that somebody timed on a GPU with nothing else on it.
type Measurement struct {
	Kernel  Kernel
	GPU     *gpu.Sheet
	Seconds float64
}

// Train fits the correction to measurements. Whole GPU types are left out in turn, which weighs the regressors and gives the error of a GPU that nobody
// measured.
func Train(all []Measurement, seed uint64) (*Model, error) {
	products := &regress.Samples{Names: productNames}
	rows := &regress.Samples{Names: rowNames}
	seen := map[string]bool{}
	m := &Model{}
	for i := range all {
		one := &all[i]
		b := Roofline(&one.Kernel, one.GPU, 1, 1)
		into, features := rows, rowFeatures
		if one.Kernel.Family == Product {
			into, features = products, productFeatures
		}
		into.X = append(into.X, features(&one.Kernel, one.GPU, &b, nil))
		into.Y = append(into.Y, math.Log(one.Seconds/b.Seconds))
		into.Groups = append(into.Groups, one.GPU.Name)
		if !seen[one.GPU.Name] {
			seen[one.GPU.Name] = true
			m.Measured = append(m.Measured, one.GPU.Name)
		}
	}
	var err error
	if m.Products, err = regress.Fit(products, regress.Options{Seed: seed, Boost: regress.BoostOptions{Trees: 250, Depth: 4}}); err != nil {
		return nil, fmt.Errorf("kernel: products: %w", err)
	}
	if m.Rows, err = regress.Fit(rows, regress.Options{Seed: seed, Centres: 64, Boost: regress.BoostOptions{Trees: 100, Depth: 3}}); err != nil {
		return nil, fmt.Errorf("kernel: rows: %w", err)
	}
	return m, nil
}
