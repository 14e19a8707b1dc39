// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package ensemble

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Graph is the DAG of an ensemble's steps: immutable.
type Graph struct {
	// Steps are in the order of the configuration.
	Steps []Step
	// Outputs are the names of the ensemble's outputs, in the order of the configuration.
	Outputs []string

	origin map[string]int   // the step that makes a tensor; fromRequest: it is an input of the ensemble
	uses   map[string][]int // the steps that take a tensor
	after  [][]int          // the steps that make inputs of each step
	order  []int            // the steps, each after those that make its inputs
}

// fromRequest is the origin of the ensemble's inputs.
const fromRequest = -1

// Step is one call of a model.
type Step struct {
	Model string
	// Version that is called; empty: the latest.
	Version string
	// Inputs and Outputs are what is mapped, sorted by the model's own names.
	Inputs, Outputs []Mapping
}

// Mapping says which tensor of the ensemble an input or an output of a step's model is.
type Mapping struct{ Name, Tensor string }

// Model is a model that a step may call.
type Model struct {
	Config *tritonpb.ModelConfig
	// Versions that are served.
	Versions []string
	// Unbatched is why requests of the model share no executions; empty: they do. It is not read of an ensemble.
	Unbatched string
}

// Split makes the graph of an ensemble. If Conch cannot execute the ensemble's steps by itself, there is no graph, and the reason says why, in words
// that follow "because". Models finds the models that steps call by their names.
func Split(config *tritonpb.ModelConfig, models func(name string) (Model, bool)) (g *Graph, reason string) {
	return split(config, models, []string{config.GetName()}, map[string]bool{})
}

// split is Split, for an ensemble that is called by others; callers are their names, and its own. Fine are the names of ensembles that were
// split already: none of them calls any of the callers, which would have been found as a circle.
func split(config *tritonpb.ModelConfig, models func(string) (Model, bool), callers []string, fine map[string]bool) (*Graph, string) {
	switch {
	case config.GetModelTransactionPolicy().GetDecoupled():
		return nil, "the ensemble is decoupled: a request may have any number of responses"
	case config.GetResponseCache().GetEnable():
		return nil, "the ensemble has a response cache, which only Triton looks into"
	case len(config.GetEnsembleScheduling().GetStep()) == 0:
		return nil, "the ensemble has no step"
	}
	g := &Graph{origin: map[string]int{}, uses: map[string][]int{}}
	for _, in := range config.GetInput() {
		if in.GetOptional() || in.GetReshape() != nil || in.GetAllowRaggedBatch() {
			return nil, fmt.Sprintf("input %q of the ensemble is optional, ragged or reshaped", in.GetName())
		}
		g.origin[in.GetName()] = fromRequest
	}
	for _, out := range config.GetOutput() {
		if out.GetReshape() != nil {
			return nil, fmt.Sprintf("output %q of the ensemble is reshaped", out.GetName())
		}
		g.Outputs = append(g.Outputs, out.GetName())
	}
	for i, s := range config.GetEnsembleScheduling().GetStep() {
		if why := g.add(i, s, config, models, callers, fine); why != "" {
			return nil, fmt.Sprintf("step %d, model %s: %s", i+1, s.GetModelName(), why)
		}
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(g.uses)), g.Outputs) {
		if _, made := g.origin[name]; !made {
			return nil, fmt.Sprintf("no step makes tensor %q", name)
		}
	}
	if g.sort(); len(g.order) < len(g.Steps) {
		return nil, "its steps wait for each other"
	}
	return g, ""
}

// add adds a step, or says why it cannot be.
func (g *Graph) add(i int, s *tritonpb.ModelEnsembling_Step, whole *tritonpb.ModelConfig, models func(string) (Model, bool), callers []string, fine map[string]bool) string {
	m, known := models(s.GetModelName())
	step := Step{Model: s.GetModelName(), Inputs: mappings(s.GetInputMap()), Outputs: mappings(s.GetOutputMap())}
	if v := s.GetModelVersion(); v >= 0 {
		step.Version = strconv.FormatInt(v, 10)
	}
	nested := m.Config.GetEnsembleScheduling() != nil
	switch {
	case s.GetModelNamespace() != "":
		return "it is in a namespace"
	case slices.Contains(callers, step.Model):
		return "it calls itself"
	case !known || m.Config == nil:
		return "it is not served"
	case step.Version != "" && !slices.Contains(m.Versions, step.Version):
		return "version " + step.Version + " is not served"
	case !nested && m.Unbatched != "":
		return m.Unbatched
	}
	if nested && !fine[step.Model] {
		if _, why := split(m.Config, models, append(slices.Clip(callers), step.Model), fine); why != "" {
			return why
		}
		fine[step.Model] = true
	}
	for _, in := range step.Inputs {
		g.uses[in.Tensor] = append(g.uses[in.Tensor], i)
	}
	for _, out := range step.Outputs {
		if _, made := g.origin[out.Tensor]; made {
			return fmt.Sprintf("tensor %q is made twice", out.Tensor)
		}
		g.origin[out.Tensor] = i
	}
	g.Steps = append(g.Steps, step)
	return sameBatch(whole, m.Config)
}

// sameBatch says why a step's tensors are not those of the ensemble as they are. Where one of the two has a batch dimension and the other has none,
// Triton adds one, or takes it away, by rules of its own; it does so for no tensor whose dims count that dimension on the side that has no batch.
func sameBatch(whole, step *tritonpb.ModelConfig) string {
	if whole.GetMaxBatchSize() > 0 == (step.GetMaxBatchSize() > 0) {
		return ""
	}
	if whole.GetMaxBatchSize() > 0 {
		return "it has no batch dimension, and the ensemble has one"
	}
	least := len(whole.GetInput()[0].GetDims())
	for _, in := range whole.GetInput() {
		least = min(least, len(in.GetDims()))
	}
	if least < 2 {
		return "it has a batch dimension, and the ensemble has none"
	}
	for _, in := range step.GetInput() {
		if len(in.GetDims())+1 != least {
			return "it has a batch dimension, and the ensemble has none"
		}
	}
	return ""
}

func mappings(of map[string]string) (all []Mapping) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, Mapping{name, of[name]})
	}
	return all
}

// sort orders the steps. Those that wait for each other are left out.
func (g *Graph) sort() {
	g.after = make([][]int, len(g.Steps))
	for i, s := range g.Steps {
		for _, in := range s.Inputs {
			if from := g.origin[in.Tensor]; from != fromRequest && !slices.Contains(g.after[i], from) {
				g.after[i] = append(g.after[i], from)
			}
		}
	}
	waits := make([]int, len(g.Steps))
	for i := range g.Steps {
		waits[i] = len(g.After(i))
	}
	for i, n := range waits {
		if n == 0 {
			g.order = append(g.order, i)
		}
	}
	for k := 0; k < len(g.order); k++ {
		for i := range g.Steps {
			if slices.Contains(g.After(i), g.order[k]) {
				if waits[i]--; waits[i] == 0 {
					g.order = append(g.order, i)
				}
			}
		}
	}
}

// After are the steps that make inputs of a step.
func (g *Graph) After(step int) []int { return g.after[step] }

// Order is that of the steps, each after those that make its inputs.
func (g *Graph) Order() []int { return g.order }

// taken is the position among After of a step of the one that makes a tensor; -1: the request has it.
func (g *Graph) taken(step int, tensor string) int {
	return slices.Index(g.after[step], g.origin[tensor])
}
