// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"cmp"
	"fmt"

	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/lower"
)

// NewDevice is a GPU type by name, with the runtime of that name ("" is onnxruntime): its sheet, the kernels that all types share, and the factors of whole
// models that fit best. Those of another GPU type or runtime, and priors, say so in their source and have wider bounds.
func NewDevice(gpuName, runtimeName string) (Device, error) {
	sheet, err := gpu.Find(gpuName)
	if err != nil {
		return Device{}, err
	}
	rt, ok := lower.Named(cmp.Or(runtimeName, "onnxruntime"))
	if !ok {
		return Device{}, fmt.Errorf("estimator: unknown runtime %q; known are onnxruntime, tensorrt, eager and tensorflow", runtimeName)
	}
	kernels, err := data.Kernels()
	if err != nil {
		return Device{}, err
	}
	d := Device{Sheet: sheet, Kernels: kernels, Runtime: rt}
	if d.Uses, err = ShippedUses(); err != nil {
		return Device{}, err
	}
	if d.Bounds, err = ShippedBounds(); err != nil {
		return Device{}, err
	}
	d.Factors, err = factorsFor(sheet, rt)
	return d, err
}

// factorsFor takes fitted factors of the GPU type where there are any, also if it has another size of memory, then those of a type of the same architecture, then of any type; what the host does
// is taken from the runtime's own.
func factorsFor(sheet gpu.Sheet, rt lower.Runtime) (Factors, error) {
	all, err := Shipped()
	if err != nil {
		return Factors{}, err
	}
	for _, name := range sortedKeys(all) {
		gpuName, runtime, _ := cut(name)
		if other, err := gpu.Find(gpuName); err == nil && runtime == rt.Name && other.ComputesAs(&sheet) {
			return all[name], nil
		}
	}
	prior := Priors(rt)
	best, score := "", -1
	for _, name := range sortedKeys(all) {
		gpuName, runtime, _ := cut(name)
		s := 0
		if runtime == rt.Name {
			s += 2
		}
		if other, err := gpu.Find(gpuName); err == nil && other.Architecture == sheet.Architecture {
			s++
			if other.ComputesAs(&sheet) {
				s += 3
			}
		}
		if s > score {
			best, score = name, s
		}
	}
	if score < 1 {
		return prior, nil
	}
	from := all[best]
	out := prior
	// How convolutions compare with products is the library's; it carries over. What the host does belongs to the runtime it was measured with.
	out.Pointwise, out.Window, out.Grouped, out.Direct, out.Saturation = from.Pointwise, from.Window, from.Grouped, from.Direct, from.Saturation
	if _, runtime, _ := cut(best); runtime == rt.Name {
		out.Fixed, out.Launch, out.Floor, out.Move, out.Copy = from.Fixed, from.Launch, from.Floor, from.Move, from.Copy
	}
	out.Bound = max(prior.Bound, 1.5*from.Bound)
	out.Source = "whole models on " + best + "; none were measured on " + sheet.Name + "/" + rt.Name
	return out, nil
}
