// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

func (v *validator) instances(c *tritonpb.ModelConfig) {
	if len(c.GetInstanceGroup()) > 0 && c.GetPlatform() == "ensemble" {
		v.refuse(v.line("instance_group"), "an ensemble has no instances; remove instance_group")
	}
	tensorRT := c.GetBackend() == "tensorrt" || c.GetPlatform() == "tensorrt_plan"
	for i, g := range c.GetInstanceGroup() {
		if len(g.GetGpus()) > 0 && (g.GetKind() == tritonpb.ModelInstanceGroup_KIND_CPU || g.GetKind() == tritonpb.ModelInstanceGroup_KIND_MODEL) {
			v.refuse(v.line("instance_group", i, "gpus"), "instance_group is %s and lists gpus", g.GetKind())
		}
		if slices.ContainsFunc(g.GetGpus(), func(n int32) bool { return n != 0 }) {
			v.refuse(v.line("instance_group", i, "gpus"), "instance_group names gpus %v: a partition's process sees one GPU, number 0; leave gpus out", g.GetGpus())
		}
		if len(g.GetProfile()) > 0 && !tensorRT {
			v.refuse(v.line("instance_group", i, "profile"), "instance_group has a profile, which only TensorRT has")
		}
	}
}

func (v *validator) batching(c *tritonpb.ModelConfig) {
	switch {
	case c.GetMaxBatchSize() < 0:
		v.refuse(v.line("max_batch_size"), "max_batch_size is %d: write 0 for no batch dimension, or the largest batch", c.GetMaxBatchSize())
	case v.line("max_batch_size") == 0:
		v.add(SeverityWarning, 0, "max_batch_size is missing and nobody completes it: 0 holds, tensors have no batch dimension and requests are never batched")
	}
	if c.GetResponseCache().GetEnable() && c.GetModelTransactionPolicy().GetDecoupled() {
		v.refuse(v.line("response_cache"), "response_cache is enabled, and the model is decoupled: Triton has no cache for such models")
	}
	v.dynamicBatching(c.GetDynamicBatching(), c.GetMaxBatchSize())
}

// dynamicBatching looks for what Triton refuses of it, which a server would not
// see where Conch forms the batches.
func (v *validator) dynamicBatching(d *tritonpb.ModelDynamicBatching, maxBatch int32) {
	refuse := func(field, format string, args ...any) {
		v.refuse(v.line("dynamic_batching", field), "dynamic_batching: "+format, args...)
	}
	for _, size := range d.GetPreferredBatchSize() {
		if size <= 0 || size > maxBatch {
			refuse("preferred_batch_size", "preferred_batch_size %d is not in 1..%d, the max_batch_size", size, maxBatch)
		}
	}
	levels := d.GetPriorityLevels()
	if levels == 0 {
		return // Triton looks at the rest with priorities alone
	}
	if level := d.GetDefaultPriorityLevel(); level == 0 || level > levels {
		refuse("default_priority_level", "default_priority_level %d is not in 1..%d, the priority_levels", level, levels)
	}
	for _, level := range slices.Sorted(maps.Keys(d.GetPriorityQueuePolicy())) {
		if level == 0 || level > levels {
			refuse("priority_queue_policy", "priority_queue_policy of level %d, which is not in 1..%d, the priority_levels", level, levels)
		}
	}
	if d.GetPreserveOrdering() && levels > 1 {
		refuse("preserve_ordering", "preserve_ordering cannot be had with more than one priority level")
	}
}

// control is a way to tell a model about sequences.
type control = tritonpb.ModelSequenceBatching_Control

func (v *validator) sequences(c *tritonpb.ModelConfig) {
	s := c.GetSequenceBatching()
	for _, size := range s.GetOldest().GetPreferredBatchSize() {
		if size <= 0 || size > c.GetMaxBatchSize() {
			v.refuse(v.line("sequence_batching", "oldest", "preferred_batch_size"), "sequence_batching: preferred_batch_size %d is not in 1..%d, the max_batch_size", size, c.GetMaxBatchSize())
		}
	}
	if use := s.GetDirect().GetMinimumSlotUtilization(); use < 0 || use > 1 {
		v.refuse(v.line("sequence_batching", "direct", "minimum_slot_utilization"), "sequence_batching: minimum_slot_utilization is %v, and can be at most 1", use)
	}
	seen := map[tritonpb.ModelSequenceBatching_Control_Kind]bool{}
	for i, in := range s.GetControlInput() {
		if in.GetName() == "" && len(in.GetControl()) > 0 {
			v.refuse(v.line("sequence_batching", "control_input", i), "control_input %d has no name", i+1)
		}
		for j, control := range in.GetControl() {
			line := v.line("sequence_batching", "control_input", i, "control", j, "kind")
			if seen[control.GetKind()] {
				v.refuse(line, "two control inputs are %s", control.GetKind())
			}
			seen[control.GetKind()] = true
			v.control(line, control)
		}
	}
	for i, state := range s.GetState() {
		v.state(i, state)
	}
}

func (v *validator) control(line int, c *control) {
	given, entries := 0, 0
	for _, n := range []int{len(c.GetInt32FalseTrue()), len(c.GetFp32FalseTrue()), len(c.GetBoolFalseTrue())} {
		if n > 0 {
			given, entries = given+1, n
		}
	}
	if c.GetKind() == tritonpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID {
		switch c.GetDataType() {
		case tritonpb.DataType_TYPE_UINT64, tritonpb.DataType_TYPE_INT64, tritonpb.DataType_TYPE_UINT32, tritonpb.DataType_TYPE_INT32, tritonpb.DataType_TYPE_STRING:
		default:
			v.refuse(line, "%s has data_type %s: it can be TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING", c.GetKind(), c.GetDataType())
		}
		if given > 0 {
			v.refuse(line, "%s is a number or a string, and has values for false and true", c.GetKind())
		}
		return
	}
	switch {
	case given == 0:
		v.refuse(line, "%s needs int32_false_true, fp32_false_true or bool_false_true", c.GetKind())
	case given > 1:
		v.refuse(line, "%s has more than one of int32_false_true, fp32_false_true and bool_false_true", c.GetKind())
	case entries != 2:
		v.refuse(line, "%s has %d values, and needs 2: for false and for true", c.GetKind(), entries)
	}
}

// initialState is the directory of a model that holds the files of states.
const initialState = "initial_state"

func (v *validator) state(i int, state *tritonpb.ModelSequenceBatching_State) {
	line := func(field string) int { return v.line("sequence_batching", "state", i, initialState, 0, field) }
	if n := len(state.GetInitialState()); n > 1 {
		v.refuse(line(""), "state %q has %d initial_state, and can have one", state.GetInputName(), n)
	}
	for _, first := range state.GetInitialState() {
		if first.GetName() == "" {
			v.refuse(line("name"), "initial_state of %q has no name", state.GetInputName())
		}
		if first.GetDataType() != state.GetDataType() {
			v.refuse(line("data_type"), "initial_state of %q is %s, and the state is %s", state.GetInputName(), first.GetDataType(), state.GetDataType())
		}
		switch {
		case slices.Contains(first.GetDims(), -1):
			v.refuse(line("dims"), "initial_state of %q has dims %v: its sizes cannot vary", state.GetInputName(), first.GetDims())
		case !fits(first.GetDims(), state.GetDims()):
			v.refuse(line("dims"), "initial_state of %q has dims %v, and the state has %v", state.GetInputName(), first.GetDims(), state.GetDims())
		}
		if first.GetStateData() == nil {
			v.refuse(line(""), "initial_state of %q has neither zero_data nor data_file", state.GetInputName())
		}
		if file := first.GetDataFile(); file != "" {
			if _, err := fs.Stat(v.files, path.Join(v.model, initialState, file)); err != nil {
				v.refuse(line("data_file"), "file %s of initial_state %s", path.Join(initialState, file), reason(err))
			}
		}
	}
}

// fits reports that two lists of dims can be those of one tensor.
func fits(a, b []int64) bool {
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x == y || x == -1 || y == -1 })
}

// warmupFiles is the directory of a model that holds the data of warm-ups.
const warmupFiles = "warmup"

func (v *validator) warmups(c *tritonpb.ModelConfig) {
	for i, sample := range c.GetModelWarmup() {
		if sample.GetBatchSize() == 0 {
			continue // Triton runs nothing then
		}
		if limit := max(c.GetMaxBatchSize(), 1); sample.GetBatchSize() > uint32(limit) {
			v.refuse(v.line("model_warmup", i, "batch_size"), "model_warmup %q has batch_size %d, and max_batch_size is %d", sample.GetName(), sample.GetBatchSize(), c.GetMaxBatchSize())
		}
		for _, in := range c.GetInput() {
			given, ok := sample.GetInputs()[in.GetName()]
			switch {
			case ok:
				v.warmupInput(i, sample, in, given)
			case !in.GetOptional():
				v.refuse(v.line("model_warmup", i), "model_warmup %q has no input %q, which is not optional", sample.GetName(), in.GetName())
			}
		}
	}
}

func (v *validator) warmupInput(i int, sample *tritonpb.ModelWarmup, in *tritonpb.ModelInput, given *tritonpb.ModelWarmup_Input) {
	at := 0
	if samples := elements(v.nodes, "model_warmup"); i < len(samples) {
		for j, entry := range elements(samples[i].children, "inputs") {
			if keyOf(entry.children) == in.GetName() {
				at = j
			}
		}
	}
	refuse := func(field, format string, args ...any) {
		v.refuse(v.line("model_warmup", i, "inputs", at, "value", field), "model_warmup %q: input %q "+format, append([]any{sample.GetName(), in.GetName()}, args...)...)
	}
	elements := int64(1)
	for _, d := range given.GetDims() {
		elements *= d
	}
	switch {
	case given.GetInputDataType() == nil:
		refuse("", "has neither zero_data nor random_data nor input_data_file")
	case given.GetDataType() != in.GetDataType():
		refuse("data_type", "is %s, and the model's is %s", given.GetDataType(), in.GetDataType())
	case slices.Contains(given.GetDims(), -1):
		refuse("dims", "has dims %v: the sizes of a warm-up cannot vary", given.GetDims())
	case !fits(given.GetDims(), in.GetDims()):
		refuse("dims", "has dims %v, and the model's has %v", given.GetDims(), in.GetDims())
	}
	if file := given.GetInputDataFile(); file != "" {
		switch info, err := fs.Stat(v.files, path.Join(v.model, warmupFiles, file)); {
		case err != nil:
			refuse("input_data_file", "has the file %s, which %s", path.Join(warmupFiles, file), reason(err))
		case info.Size() < elements*triton.ElementSize(given.GetDataType()):
			refuse("input_data_file", "needs %d bytes, and %s has %d", elements*triton.ElementSize(given.GetDataType()), path.Join(warmupFiles, file), info.Size())
		}
	}
}
