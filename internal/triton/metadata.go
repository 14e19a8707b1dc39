// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import "github.com/conch-serving/conch/internal/triton/tritonpb"

// Metadata is what a server says of a model of some versions by its configuration: its tensors with the batch dimension.
func Metadata(c *tritonpb.ModelConfig, versions []string) *tritonpb.ModelMetadataResponse {
	m := &tritonpb.ModelMetadataResponse{Name: c.GetName(), Versions: versions, Platform: c.GetPlatform()}
	if m.Platform == "" {
		m.Platform = c.GetBackend()
	}
	describe := func(name string, t tritonpb.DataType, dims []int64, batched bool) *tritonpb.ModelMetadataResponse_TensorMetadata {
		if batched && c.GetMaxBatchSize() > 0 {
			dims = append([]int64{-1}, dims...)
		}
		return &tritonpb.ModelMetadataResponse_TensorMetadata{Name: name, Datatype: DatatypeName(t), Shape: dims}
	}
	for _, in := range c.GetInput() {
		m.Inputs = append(m.Inputs, describe(in.GetName(), in.GetDataType(), in.GetDims(), !in.GetAllowRaggedBatch()))
	}
	for _, out := range c.GetOutput() {
		m.Outputs = append(m.Outputs, describe(out.GetName(), out.GetDataType(), out.GetDims(), true))
	}
	return m
}
