// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// neighbour is a model as the ensembles of its repository see it.
type neighbour struct {
	// config is nil where it cannot be read.
	config *tritonpb.ModelConfig
	// text is the config.pbtxt of an ensemble.
	text []byte
	// versions are those that there are.
	versions []int64
	// refused is set where Triton would refuse the model, for itself.
	refused bool
}

// neighbours are the models of a repository by name.
type neighbours map[string]*neighbour

// check says what is wrong with ensembles and how they call other models. An
// ensemble falls with the models that it calls.
func (all neighbours) check() map[string][]Problem {
	found := map[string][]Problem{}
	for changed := true; changed; {
		changed = false
		fell := map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			n := all[name]
			if n.config.GetEnsembleScheduling() == nil || len(found[name]) > 0 {
				continue
			}
			if problems := all.ensemble(name); len(problems) > 0 {
				found[name], fell[name] = problems, true
			}
		}
		for name := range fell {
			changed = changed || !all[name].refused
			all[name].refused = true
		}
	}
	return found
}

// flow is a tensor between the steps of an ensemble.
type flow struct {
	line    int
	made    bool // by an input of the ensemble, or by a step
	used    bool
	ready   bool
	claims  []claim
	output  bool
	feature string // "input" or "output" where it is the ensemble's own
}

// claim is what one model says of a tensor.
type claim struct {
	model string
	kind  tritonpb.DataType
	dims  []int64
	full  []int64 // with the batch dimension
}

func claimed(model string, c *tritonpb.ModelConfig, t tensor) claim {
	out := claim{model: model, kind: t.GetDataType(), dims: t.GetDims(), full: t.GetDims()}
	if c.GetMaxBatchSize() > 0 {
		out.full = append([]int64{-1}, t.GetDims()...)
	}
	return out
}

// ensemble says what is wrong with one of them.
func (all neighbours) ensemble(name string) []Problem {
	self := all[name]
	v := &validator{model: name}
	var err error
	if v.nodes, err = parseTree(self.text); err != nil {
		return nil // reported by validate
	}
	schedule := self.config.GetEnsembleScheduling()
	if len(schedule.GetStep()) == 0 {
		v.refuse(v.line("ensemble_scheduling"), "the ensemble has no step")
		return v.problems
	}
	if circle := all.circle(name, nil, map[string]bool{}); circle != nil {
		v.refuse(v.line("ensemble_scheduling"), "the ensemble calls itself: %s", strings.Join(circle, " calls "))
		return v.problems
	}
	flows := map[string]*flow{}
	tensor := func(name string) *flow {
		if flows[name] == nil {
			flows[name] = &flow{}
		}
		return flows[name]
	}
	for i, in := range self.config.GetInput() {
		f := tensor(in.GetName())
		f.made, f.ready, f.line, f.feature = true, true, v.line("input", i), "input"
		f.claims = append(f.claims, claimed(name, self.config, in))
	}
	for i, out := range self.config.GetOutput() {
		f := tensor(out.GetName())
		f.output, f.line, f.feature = true, v.line("output", i), "output"
		f.claims = append(f.claims, claimed(name, self.config, out))
	}
	for i, step := range schedule.GetStep() {
		v.step(i, step, self.config, all, tensor)
	}
	if len(v.problems) > 0 {
		return v.problems
	}
	for settled := false; !settled; {
		settled = true
		for _, step := range schedule.GetStep() {
			waits := slices.ContainsFunc(slices.Collect(maps.Values(step.GetInputMap())), func(name string) bool { return !flows[name].ready })
			for _, name := range step.GetOutputMap() {
				if !waits && !flows[name].ready {
					flows[name].ready, settled = true, false
				}
			}
		}
	}
	nobodys := false
	for _, name := range slices.Sorted(maps.Keys(flows)) {
		v.flow(name, flows[name])
		nobodys = nobodys || !flows[name].made
	}
	for _, name := range slices.Sorted(maps.Keys(flows)) {
		if f := flows[name]; !nobodys && !f.ready {
			v.refuse(f.line, "tensor %q waits for itself: the steps that make it go in a circle", name)
		}
	}
	return v.problems
}

// step looks at one step by itself, and notes which tensors it takes and makes.
func (v *validator) step(i int, step *tritonpb.ModelEnsembling_Step, self *tritonpb.ModelConfig, all neighbours, tensor func(string) *flow) {
	at := func(field string) int { return v.line("ensemble_scheduling", "step", i, field) }
	refuse := func(field, format string, args ...any) {
		v.refuse(at(field), "step %d of the ensemble "+format, append([]any{i + 1}, args...)...)
	}
	model := step.GetModelName()
	switch {
	case model == "":
		refuse("", "names no model")
		return
	case len(step.GetInputMap()) == 0:
		refuse("", "has no input_map")
		return
	case len(step.GetOutputMap()) == 0:
		refuse("", "has no output_map")
		return
	}
	callee, known := all[model]
	switch {
	case !known:
		refuse("model_name", "calls model %q, which the repository does not have", model)
		return
	case callee.refused || callee.config == nil:
		refuse("model_name", "calls model %q, which Triton would refuse", model)
		return
	}
	if served := ServedVersions(callee.config, callee.versions); step.GetModelVersion() != -1 && !slices.Contains(served, step.GetModelVersion()) {
		refuse("model_version", "calls version %d of model %q, which is not served; write model_version: -1 for the latest", step.GetModelVersion(), model)
	}
	if limit := callee.config.GetMaxBatchSize(); limit > 0 && self.GetMaxBatchSize() > limit {
		refuse("model_name", "calls model %q, whose max_batch_size is %d, and the ensemble's is %d", model, limit, self.GetMaxBatchSize())
	}
	inputs, outputs := map[string]claim{}, map[string]claim{}
	for _, in := range callee.config.GetInput() {
		inputs[in.GetName()] = claimed(model, callee.config, in)
		if _, mapped := step.GetInputMap()[in.GetName()]; !mapped && !in.GetOptional() {
			refuse("input_map", "does not say where input %q of model %q comes from", in.GetName(), model)
		}
	}
	for _, out := range callee.config.GetOutput() {
		outputs[out.GetName()] = claimed(model, callee.config, out)
	}
	for _, key := range slices.Sorted(maps.Keys(step.GetInputMap())) {
		declared, ok := inputs[key]
		if !ok {
			refuse("input_map", "maps input %q, which model %q does not have", key, model)
			continue
		}
		f := tensor(step.GetInputMap()[key])
		f.used, f.claims, f.line = true, append(f.claims, declared), max(f.line, at("input_map"))
	}
	for _, key := range slices.Sorted(maps.Keys(step.GetOutputMap())) {
		declared, ok := outputs[key]
		if !ok {
			refuse("output_map", "maps output %q, which model %q does not have", key, model)
			continue
		}
		name := step.GetOutputMap()[key]
		f := tensor(name)
		if f.made && f.feature != "input" {
			refuse("output_map", "makes tensor %q, which another step makes", name)
		}
		f.made, f.claims, f.line = true, append(f.claims, declared), max(f.line, at("output_map"))
	}
}

// flow looks at one tensor of an ensemble.
func (v *validator) flow(name string, f *flow) {
	switch {
	case f.feature == "output" && !f.made:
		v.refuse(f.line, "no step makes output %q of the ensemble", name)
	case !f.made:
		v.refuse(f.line, "tensor %q comes from no step, and is no input of the ensemble", name)
	case f.feature == "input" && !f.used:
		v.refuse(f.line, "no step uses input %q of the ensemble", name)
	case !f.used && !f.output:
		v.refuse(f.line, "no step uses tensor %q; leave it out of the output_map", name)
	}
	for _, other := range f.claims[1:] {
		first := f.claims[0]
		switch {
		case other.kind != first.kind:
			v.refuse(f.line, "tensor %q is %s for %s and %s for %s", name, first.kind, first.model, other.kind, other.model)
		case !fits(other.dims, first.dims) && !fits(other.full, first.full):
			v.refuse(f.line, "tensor %q has dims %s for %s and %s for %s", name, shown(first), first.model, shown(other), other.model)
		}
	}
}

func shown(c claim) string { return fmt.Sprint(c.dims) }

// circle is the way from an ensemble through those that it calls back to one of
// them; nil where there is none. done are those from which there is none.
func (all neighbours) circle(name string, way []string, done map[string]bool) []string {
	if i := slices.Index(way, name); i >= 0 {
		return append(slices.Clone(way[i:]), name)
	}
	n := all[name]
	if n == nil || done[name] {
		return nil
	}
	for _, step := range n.config.GetEnsembleScheduling().GetStep() {
		if found := all.circle(step.GetModelName(), append(slices.Clone(way), name), done); found != nil {
			return found
		}
	}
	done[name] = true
	return nil
}
