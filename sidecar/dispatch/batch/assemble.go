// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/mem"
)

// ErrIncompatible means that Assemble was given requests that cannot share a
// batch. For requests with equal keys it is as unlikely as a collision of 64-bit
// hashes.
var ErrIncompatible = errors.New("requests cannot share a batch")

// Assemble joins requests with equal keys into one, in order: shapes add up along
// the first dimension, data is a list of references to the callers' buffers, and
// the outputs are the union of those that are asked for. The id and the parameters
// `timeout`, `priority` and `triton_enable_empty_final_response` are left out, since they
// belong to one caller each. The result is freed on its own.
func Assemble(reqs []*Request) (*Request, error) {
	if len(reqs) == 0 {
		return nil, errors.New("assemble: no requests")
	}
	first := reqs[0]
	joined := &Request{Model: first.Model, Version: first.Version, Inputs: make([]Tensor, len(first.Inputs))}
	for _, p := range first.Parameters {
		if !ofOneCaller(p.Name) {
			joined.Parameters = append(joined.Parameters, p)
		}
	}
	for i := range first.Inputs {
		if err := joinInput(joined, i, reqs); err != nil {
			joined.Free()
			return nil, err
		}
	}
	for _, r := range reqs[1:] {
		if r.Version != first.Version || len(r.Inputs) != len(first.Inputs) || !sameParameters(r.Parameters, first.Parameters) {
			joined.Free()
			return nil, fmt.Errorf("assemble a batch of model %q: %w: version, parameters or number of inputs differ", first.Model, ErrIncompatible)
		}
	}
	joined.Outputs = unionOutputs(reqs)
	return joined, nil
}

func joinInput(joined *Request, i int, reqs []*Request) error {
	like := &reqs[0].Inputs[i]
	t := &joined.Inputs[i]
	t.Name, t.Datatype = like.Name, like.Datatype
	t.Shape = slices.Clone(like.Shape)
	if len(t.Shape) > 0 {
		t.Shape[0] = 0
	}
	buffers := 0
	for _, r := range reqs {
		if i < len(r.Inputs) {
			buffers += len(r.Inputs[i].Data)
		}
	}
	t.Data = make(mem.BufferSlice, 0, buffers)
	for _, r := range reqs {
		in := r.input(i, like.Name)
		if in == nil || in.Datatype != like.Datatype || in.Data == nil || len(in.Shape) == 0 || !slices.Equal(in.Shape[1:], like.Shape[1:]) {
			return fmt.Errorf("assemble a batch of model %q: %w: input %q differs", joined.Model, ErrIncompatible, like.Name)
		}
		t.Shape[0] += in.Shape[0]
		in.Data.Ref()
		t.Data = append(t.Data, in.Data...)
	}
	return nil
}

// input finds an input by name, looking first where it most likely is.
func (r *Request) input(i int, name string) *Tensor {
	if i < len(r.Inputs) && r.Inputs[i].Name == name {
		return &r.Inputs[i]
	}
	for i := range r.Inputs {
		if r.Inputs[i].Name == name {
			return &r.Inputs[i]
		}
	}
	return nil
}

// ofOneCaller reports whether a parameter concerns one caller only, and not its
// batch.
func ofOneCaller(name string) bool {
	return name == ParameterTimeout || name == ParameterPriority || name == ParameterEmptyFinalResponse
}

// sameParameters compares as sets, without the parameters that concern one caller
// only.
func sameParameters(a, b []Parameter) bool {
	return includesParameters(a, b) && includesParameters(b, a)
}

func includesParameters(a, b []Parameter) bool {
	for _, p := range a {
		if ofOneCaller(p.Name) {
			continue
		}
		q, ok := FindParameter(b, p.Name)
		if !ok || !bytes.Equal(p.Value, q.Value) {
			return false
		}
	}
	return true
}

// unionOutputs returns nothing, which asks for all, if any request asks for all.
func unionOutputs(reqs []*Request) []RequestedOutput {
	var union []RequestedOutput
	for i, r := range reqs {
		if len(r.Outputs) == 0 {
			return nil
		}
		if i == 0 {
			union = slices.Clone(r.Outputs)
			continue
		}
		for _, o := range r.Outputs {
			if !slices.ContainsFunc(union, func(u RequestedOutput) bool { return u.Name == o.Name }) {
				union = append(union, o)
			}
		}
	}
	return union
}
