// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// parseConfig reads config.pbtxt and fills in Triton's defaults. Its errors are those for which Triton fails to poll a model.
func parseConfig(model string, text []byte) (*pb.ModelConfig, error) {
	c := &pb.ModelConfig{}
	if err := prototext.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("config.pbtxt: %w", err)
	}
	return normalise(model, c)
}

// parseOverride reads the JSON of a load request's config parameter, which replaces config.pbtxt as a whole.
func parseOverride(model, text string) (*pb.ModelConfig, error) {
	c := &pb.ModelConfig{}
	if err := protojson.Unmarshal([]byte(text), c); err != nil {
		return nil, fmt.Errorf("config parameter: %w", err)
	}
	return normalise(model, c)
}

// normalise sets the defaults that Triton shows in a model's config and refuses what Triton refuses before it loads anything.
func normalise(model string, c *pb.ModelConfig) (*pb.ModelConfig, error) {
	if c.Name == "" {
		c.Name = model
	}
	if c.Name != model {
		return nil, fmt.Errorf("name %q does not match directory %q", c.Name, model)
	}
	if c.GetVersionPolicy().GetPolicyChoice() == nil {
		c.VersionPolicy = &pb.ModelVersionPolicy{PolicyChoice: &pb.ModelVersionPolicy_Latest_{
			Latest: &pb.ModelVersionPolicy_Latest{NumVersions: 1}}}
	}
	if c.GetEnsembleScheduling() != nil {
		return normaliseEnsemble(c)
	}
	if c.Backend == "" && c.Platform == "" {
		c.Backend = "python" // what Triton infers from a version directory with model.py
	}
	if err := checkTensors(c); err != nil {
		return nil, err
	}
	if d := c.GetDynamicBatching(); d != nil {
		if err := normaliseDynamic(c, d); err != nil {
			return nil, err
		}
	}
	if oldest := c.GetSequenceBatching().GetOldest(); oldest != nil && len(oldest.PreferredBatchSize) == 0 {
		oldest.PreferredBatchSize = []int32{c.MaxBatchSize}
	}
	normaliseOptimization(c)
	if len(c.InstanceGroup) == 0 {
		c.InstanceGroup = []*pb.ModelInstanceGroup{{Name: model, Kind: pb.ModelInstanceGroup_KIND_CPU, Count: 1}}
	}
	for i, g := range c.InstanceGroup {
		if g.Name == "" {
			g.Name = fmt.Sprintf("%s_%d", model, i)
		}
		if g.Kind == pb.ModelInstanceGroup_KIND_AUTO {
			g.Kind = pb.ModelInstanceGroup_KIND_CPU
		}
		if g.Count == 0 {
			g.Count = 1
		}
		if g.Count < 0 {
			return nil, fmt.Errorf("instance group %q: count %d is negative", g.Name, g.Count)
		}
	}
	if c.DefaultModelFilename == "" && c.Backend == "python" {
		c.DefaultModelFilename = "model.py"
	}
	return c, nil
}

// normaliseEnsemble checks an ensemble as far as that needs no other model.
func normaliseEnsemble(c *pb.ModelConfig) (*pb.ModelConfig, error) {
	if c.Platform != "ensemble" {
		return nil, fmt.Errorf("ensemble scheduling cannot be set for model %q whose platform is not ensemble", c.Name)
	}
	steps := c.GetEnsembleScheduling().Step
	if len(steps) == 0 {
		return nil, fmt.Errorf("must specify 'step' for ensemble %q", c.Name)
	}
	used, made := map[string]bool{}, map[string]bool{}
	for _, step := range steps {
		for _, name := range step.InputMap {
			used[name] = true
		}
		for _, name := range step.OutputMap {
			made[name] = true
		}
	}
	for _, in := range c.Input {
		if !used[in.Name] {
			return nil, fmt.Errorf("ensemble input %q for ensemble %s is not used", in.Name, c.Name)
		}
	}
	for _, out := range c.Output {
		if !made[out.Name] {
			return nil, fmt.Errorf("ensemble output %q for ensemble %s is not used", out.Name, c.Name)
		}
	}
	return c, checkTensors(c)
}

func normaliseOptimization(c *pb.ModelConfig) {
	if c.Optimization == nil {
		c.Optimization = &pb.ModelOptimizationPolicy{}
	}
	if c.Optimization.InputPinnedMemory == nil {
		c.Optimization.InputPinnedMemory = &pb.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
	if c.Optimization.OutputPinnedMemory == nil {
		c.Optimization.OutputPinnedMemory = &pb.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
}

func normaliseDynamic(c *pb.ModelConfig, d *pb.ModelDynamicBatching) error {
	if len(d.PreferredBatchSize) == 0 && c.MaxBatchSize > 0 {
		d.PreferredBatchSize = []int32{c.MaxBatchSize}
	}
	for _, p := range d.PreferredBatchSize {
		if p <= 0 || p > c.MaxBatchSize {
			return fmt.Errorf("dynamic batching preferred size %d must be in 1..%d, the maximum batch size", p, c.MaxBatchSize)
		}
	}
	return checkPolicies(d)
}

func checkTensors(c *pb.ModelConfig) error {
	if c.MaxBatchSize < 0 {
		return fmt.Errorf("max_batch_size %d must not be negative", c.MaxBatchSize)
	}
	check := func(kind, name string, t pb.DataType, dims []int64) error {
		switch {
		case name == "":
			return fmt.Errorf("%s without a name", kind)
		case t == pb.DataType_TYPE_INVALID:
			return fmt.Errorf("%s %q must specify data_type", kind, name)
		case len(dims) == 0:
			return fmt.Errorf("%s %q must specify dims", kind, name)
		case slices.ContainsFunc(dims, func(d int64) bool { return d < 1 && d != -1 }):
			return fmt.Errorf("%s %q: dims %v must be positive, or -1 where variable", kind, name, dims)
		}
		return nil
	}
	for _, in := range c.Input {
		if err := check("input", in.Name, in.DataType, in.Dims); err != nil {
			return err
		}
	}
	for _, out := range c.Output {
		if err := check("output", out.Name, out.DataType, out.Dims); err != nil {
			return err
		}
		if err := checkReshape("output", out.Name, out.Dims, out.Reshape); err != nil {
			return err
		}
	}
	return checkInputs(c)
}

// checkInputs checks what inputs alone can ask for.
func checkInputs(c *pb.ModelConfig) error {
	for _, in := range c.Input {
		if in.IsShapeTensor {
			return fmt.Errorf("input %q: shape tensors are only supported for TensorRT platform", in.Name)
		}
		if err := checkReshape("input", in.Name, in.Dims, in.Reshape); err != nil {
			return err
		}
	}
	for _, batch := range c.BatchInput {
		for _, name := range batch.SourceInput {
			if !slices.ContainsFunc(c.Input, func(in *pb.ModelInput) bool { return in.Name == name }) {
				return fmt.Errorf("batch_input: unknown source input name %q", name)
			}
		}
	}
	return nil
}

// checkReshape wants as many elements after a reshape as before it.
func checkReshape(kind, name string, dims []int64, reshape *pb.ModelTensorReshape) error {
	if reshape == nil {
		return nil
	}
	size := func(shape []int64) int64 {
		return elements(slices.DeleteFunc(slices.Clone(shape), func(d int64) bool { return d == -1 }))
	}
	if size(dims) != size(reshape.Shape) {
		return fmt.Errorf("%s %q has different size for dims and reshape", kind, name)
	}
	return nil
}

func parameter(c *pb.ModelConfig, key string) string { return c.GetParameters()[key].GetStringValue() }
