// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"io/fs"
	"path"
	"slices"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// tensor is what inputs and outputs have in common.
type tensor interface {
	GetName() string
	GetDataType() tritonpb.DataType
	GetDims() []int64
	GetReshape() *tritonpb.ModelTensorReshape
	GetIsShapeTensor() bool
	GetIsNonLinearFormatIo() bool
}

func (v *validator) tensors(c *tritonpb.ModelConfig) {
	if len(c.GetInput()) == 0 {
		v.add(SeverityWarning, 0, "no input is described: no request can name one")
	}
	if len(c.GetOutput()) == 0 {
		v.add(SeverityWarning, 0, "no output is described")
	}
	seen := map[string]bool{}
	for i, in := range c.GetInput() {
		v.tensor(c, "input", i, in)
		if f := in.GetFormat(); (f == tritonpb.ModelInput_FORMAT_NCHW || f == tritonpb.ModelInput_FORMAT_NHWC) && len(in.GetDims()) != 3 {
			v.refuse(v.line("input", i, "format"), "input %q is an image of %s and has %d dims, not 3", in.GetName(), f, len(in.GetDims()))
		}
		if seen[in.GetName()] {
			v.add(SeverityWarning, v.line("input", i, "name"), "input %q is described twice", in.GetName())
		}
		seen[in.GetName()] = true
	}
	for i, out := range c.GetOutput() {
		v.tensor(c, "output", i, out)
		label := out.GetLabelFilename()
		if label == "" {
			continue
		}
		switch info, err := fs.Stat(v.files, path.Join(v.model, label)); {
		case err != nil && fs.ValidPath(path.Join(v.model, label)):
			v.refuse(v.line("output", i, "label_filename"), "label file %q %s", label, reason(err))
		case err == nil && info.IsDir():
			v.refuse(v.line("output", i, "label_filename"), "label file %q is a directory; a Triton that is asked to load the model ends", label)
		}
	}
}

func (v *validator) tensor(c *tritonpb.ModelConfig, kind string, i int, t tensor) {
	name, dims := t.GetName(), t.GetDims()
	if name == "" {
		v.refuse(v.line(kind, i, "name"), "%s %d has no name", kind, i+1)
	}
	if t.GetDataType() == tritonpb.DataType_TYPE_INVALID {
		v.refuse(v.line(kind, i, "data_type"), "%s %q has no data_type", kind, name)
	}
	if len(dims) == 0 {
		v.refuse(v.line(kind, i, "dims"), "%s %q has no dims; a scalar is dims: [ 1 ] with an empty reshape", kind, name)
	}
	for _, d := range dims {
		if d < 1 && d != -1 {
			v.refuse(v.line(kind, i, "dims"), "%s %q has dimension %d: write 1 or more, or -1 for a size that varies", kind, name, d)
			break
		}
	}
	if tensorRT := c.GetBackend() == "tensorrt" || c.GetPlatform() == "tensorrt_plan"; !tensorRT {
		if t.GetIsShapeTensor() {
			v.refuse(v.line(kind, i, "is_shape_tensor"), "%s %q is a shape tensor, which only TensorRT has", kind, name)
		}
		if t.GetIsNonLinearFormatIo() {
			v.refuse(v.line(kind, i, "is_non_linear_format_io"), "%s %q has a non-linear format, which only TensorRT has", kind, name)
		}
	}
	v.reshape(kind, i, t, c.GetMaxBatchSize() > 0)
}

func (v *validator) reshape(kind string, i int, t tensor, batched bool) {
	if t.GetReshape() == nil {
		return
	}
	shape, line := t.GetReshape().GetShape(), v.line(kind, i, "reshape")
	if len(shape) == 0 && !batched {
		v.refuse(line, "%s %q is reshaped to no dimension, which needs max_batch_size above 0", kind, t.GetName())
	}
	if !slices.Equal(trunks(t.GetDims()), trunks(shape)) {
		v.refuse(line, "%s %q has dims %v and cannot be reshaped to %v: the numbers of elements differ, before, between or after the sizes that vary", kind, t.GetName(), t.GetDims(), shape)
	}
}

// trunks are the numbers of elements of what stands before, between and behind the
// sizes that vary.
func trunks(shape []int64) []int64 {
	all := []int64{1}
	for _, d := range shape {
		if d < 0 {
			all = append(all, 1)
		} else {
			all[len(all)-1] *= d
		}
	}
	return all
}

// derivedTensors are those that Triton makes of a batch, or splits by one.
func (v *validator) derivedTensors(c *tritonpb.ModelConfig) {
	isInput := func(name string) bool {
		return slices.ContainsFunc(c.GetInput(), func(in *tritonpb.ModelInput) bool { return in.GetName() == name })
	}
	isOutput := func(name string) bool {
		return slices.ContainsFunc(c.GetOutput(), func(out *tritonpb.ModelOutput) bool { return out.GetName() == name })
	}
	source := func(field string, i int, kind string, sources []string) {
		line := v.line(field, i, "source_input")
		if len(sources) != 1 {
			v.refuse(line, "%s of kind %s has %d source_input, and needs 1", field, kind, len(sources))
		}
		for _, name := range sources {
			if !isInput(name) {
				v.refuse(line, "%s: source_input %q is no input of the model", field, name)
			}
		}
	}
	for i, b := range c.GetBatchInput() {
		source("batch_input", i, b.GetKind().String(), b.GetSourceInput())
		if t := b.GetDataType(); t != tritonpb.DataType_TYPE_INT32 && t != tritonpb.DataType_TYPE_FP32 {
			v.refuse(v.line("batch_input", i, "data_type"), "batch_input has data_type %s: it can be TYPE_INT32 or TYPE_FP32", t)
		}
	}
	split := map[string]bool{}
	for i, b := range c.GetBatchOutput() {
		source("batch_output", i, b.GetKind().String(), b.GetSourceInput())
		line := v.line("batch_output", i, "target_name")
		if len(b.GetTargetName()) == 0 {
			v.refuse(line, "batch_output has no target_name; a Triton that is asked to load the model ends")
		}
		for _, name := range b.GetTargetName() {
			switch {
			case !isOutput(name):
				v.refuse(line, "batch_output: target_name %q is no output of the model", name)
			case split[name]:
				v.refuse(line, "batch_output: target_name %q is there twice", name)
			}
			split[name] = true
		}
	}
}
