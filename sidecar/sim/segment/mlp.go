// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"encoding/json"
	"fmt"
	"math"
)

// MLP is a multilayer perceptron with rectified linear units between its layers and one output, as section 5.5 has it: three hidden layers of 32.
type MLP struct{ layers []layer }

// layer is y = Wx + b; weights has a row for each output.
type layer struct {
	weights [][]float64
	bias    []float64
}

// The names that the authors' PyTorch module has for its layers, in order.
func layerNames() []string { return []string{"hidden1", "hidden2", "hidden3", "predict"} }

// ParseMLP reads weights from JSON: an object "weights" with NAME.weight, a row for each output, and NAME.bias for each of the layers hidden1,
// hidden2, hidden3 and predict, as PyTorch's state dictionary has them.
func ParseMLP(text []byte) (*MLP, error) {
	var file struct {
		Weights map[string]json.RawMessage `json:"weights"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("weights of an MLP: %w", err)
	}
	m := &MLP{}
	inputs := 0
	for i, name := range layerNames() {
		var l layer
		for part, into := range map[string]any{".weight": &l.weights, ".bias": &l.bias} {
			raw, ok := file.Weights[name+part]
			if !ok {
				return nil, fmt.Errorf("weights of an MLP: there is no %s%s", name, part)
			}
			if err := json.Unmarshal(raw, into); err != nil {
				return nil, fmt.Errorf("weights of an MLP: %s%s: %w", name, part, err)
			}
		}
		if len(l.weights) == 0 || len(l.weights) != len(l.bias) {
			return nil, fmt.Errorf("weights of an MLP: %s has %d rows of weights and %d biases", name, len(l.weights), len(l.bias))
		}
		if i == 0 {
			inputs = len(l.weights[0])
		}
		for k, row := range l.weights {
			if len(row) != inputs {
				return nil, fmt.Errorf("weights of an MLP: row %d of %s has %d weights; the layer has %d inputs", k, name, len(row), inputs)
			}
		}
		inputs = len(l.weights)
		m.layers = append(m.layers, l)
	}
	if inputs != 1 {
		return nil, fmt.Errorf("weights of an MLP: %d outputs; there is one latency", inputs)
	}
	return m, nil
}

// Inputs is the number of features.
func (m *MLP) Inputs() int { return len(m.layers[0].weights[0]) }

// Predict is the output for features, of which there must be [MLP.Inputs].
func (m *MLP) Predict(features []float64) float64 {
	x := features
	for i, l := range m.layers {
		y := make([]float64, len(l.bias))
		for k, row := range l.weights {
			sum := l.bias[k]
			for j, w := range row {
				sum += w * x[j]
			}
			if i < len(m.layers)-1 {
				sum = math.Max(0, sum)
			}
			y[k] = sum
		}
		x = y
	}
	return x[0]
}
