// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"math"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
)

// Factors are what is fitted to whole models of a GPU type and a runtime, on top of the kernels that all GPU types share. A zero value is none: see
// [Factors.Check].
type Factors struct {
	// Fixed is the time of a batch beside its kernels, Launch the host's time per kernel, Floor the device's per kernel, all seconds.
	Fixed  float64 `json:"fixed_s"`
	Launch float64 `json:"launch_s"`
	Floor  float64 `json:"floor_s"`
	// Copy is the time per byte of input, from the host's memory to the device's.
	Copy float64 `json:"copy_s_per_byte"`
	// Product, Pointwise, Window, Grouped, Direct and Move are factors on the times of matrix products, of convolutions with a window of one position and of
	// more, in groups, depthwise, and of what only moves data.
	Product   float64 `json:"product"`
	Pointwise float64 `json:"pointwise"`
	Window    float64 `json:"window"`
	Grouped   float64 `json:"grouped"`
	Direct    float64 `json:"direct"`
	Move      float64 `json:"move"`
	// Saturation is the share of the GPU that draws its whole bandwidth.
	Saturation float64 `json:"saturation"`
	// Bound is how far nine of ten whole models were from their estimate, relative to it, when they were left out of the fit.
	Bound float64 `json:"bound"`
	// Source says what was fitted.
	Source string `json:"source"`
}

// Priors are factors for a GPU type and a runtime without measurements of whole models. Depthwise convolutions take what they take in whole models on A100
// (9.1) and 1080 Ti (11.8).
func Priors(r lower.Runtime) Factors {
	return Factors{
		Fixed: r.Fixed, Launch: r.Launch, Floor: 2e-6, Copy: 1e-10, Product: 1, Pointwise: 1.1, Window: 1, Grouped: 1.5, Direct: 9, Move: 1.25,
		Saturation: .5, Bound: .5, Source: "priors: no whole model was measured on this GPU type with this runtime",
	}
}

// Check says whether the factors can be used.
func (f Factors) Check() bool {
	for _, v := range []float64{f.Product, f.Pointwise, f.Window, f.Grouped, f.Direct, f.Move, f.Saturation} {
		if !(v > 0) || math.IsInf(v, 0) {
			return false
		}
	}
	return f.Copy >= 0 && f.Fixed >= 0 && f.Launch >= 0 && f.Floor >= 0
}

// of is the factor on a kernel's time.
func (f *Factors) of(k *kernel.Kernel) float64 {
	switch k.Family {
	case kernel.Product:
		return f.Product
	case kernel.Convolution:
		switch {
		case k.Batch > 1:
			return f.Grouped
		case k.Window > 1:
			return f.Window
		}
		return f.Pointwise
	case kernel.Direct:
		return f.Direct
	case kernel.Move:
		return f.Move
	}
	return 1 // measured one by one
}

// Device is a GPU type with a runtime on it.
type Device struct {
	Sheet   gpu.Sheet
	Kernels *kernel.Model
	Runtime lower.Runtime
	Factors Factors
	// Bounds are those of batches of measured kernels; without any the factors' bound is that of every batch.
	Bounds []Bound
	Uses   *Uses
	// Float is the arithmetic of FP32 tensors.
	Float kernel.Precision
}

// timed is a kernel with what it takes of a device.
type timed struct {
	// full is the bound with the whole GPU; correction the factor on it at any share.
	full       kernel.Bound
	correction float64
	// at has the device's seconds per share of the grid.
	at []float64
}

// clock times kernels, each different one once.
type clock struct {
	d      *Device
	shares []float64
	known  map[kernel.Kernel]*timed
	row    []float64
}

func newClock(d *Device, shares []float64) *clock {
	return &clock{d: d, shares: shares, known: map[kernel.Kernel]*timed{}, row: make([]float64, 0, 16)}
}

func (c *clock) time(k kernel.Kernel) *timed {
	if t := c.known[k]; t != nil {
		return t
	}
	sheet := &c.d.Sheet
	t := &timed{full: kernel.Roofline(&k, sheet, 1, c.d.Factors.Saturation), at: make([]float64, len(c.shares))}
	t.correction = c.d.Factors.of(&k) * c.d.Kernels.Correction(&k, sheet, &t.full, c.row)
	for i, share := range c.shares {
		b := t.full
		if share < 1 {
			b = kernel.Roofline(&k, sheet, share, c.d.Factors.Saturation)
		}
		t.at[i] = b.Seconds*t.correction + c.d.Factors.Floor
	}
	c.known[k] = t
	return t
}

// span is the time of a sequence of kernels at share i: the host launches one after the other, the device runs them in order and waits for the host where
// that is slower. Input is the bytes that are copied to the device first.
func span(launches []lower.Launch, times []*timed, share int, input float64, f *Factors) float64 {
	host, device := 0.0, 0.0
	for i := range launches {
		r := launches[i].Repeat
		if !launches[i].Within {
			host += f.Launch
		}
		start := max(device, host)
		device = start + times[i].at[share]
		if r > 1 {
			each := max(f.Launch, times[i].at[share])
			device += (r - 1) * each
			host += (r - 1) * f.Launch
		} else if r < 1 {
			device = start + r*times[i].at[share]
		}
	}
	return f.Fixed + f.Copy*input + device
}
