// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
)

// Kind is what a batch's time goes into: estimates of different kinds are off by different factors.
type Kind string

// The kinds.
const (
	// Measured is a batch that spends its time in kernels which were measured one by one: products, element-wise ones, softmax, normalisation. Transformers are.
	Measured Kind = "measured kernels"
	// Other is one of convolutions, or one that waits for the host: what is known of them are factors of whole models.
	Other Kind = "other"
)

// Near is how near a GPU type is to what was measured, for batches of the kind Measured.
type Near string

// The kinds of nearness.
const (
	// OwnKernels says that the GPU type's own kernels are among those that were measured; SheetOnly that its data sheet is all that is known.
	OwnKernels Near = "own kernels"
	SheetOnly  Near = "data sheet"
)

const (
	// mostlyMeasured is the part of the device's time from which a batch is of the kind Measured.
	mostlyMeasured = .8
	// lowPower is the board power, in watts, up to which a GPU slows down as it warms, by a factor that depends on the server it is in.
	lowPower = 75
	// boundLevel is the part of the deviations that a bound is above. It is more than the nine of ten that are promised: those of one GPU or one family of models
	// are alike, so that few hundred of them count as fewer.
	boundLevel = .93
)

// Bound is how far whole models of a kind were off that were left out.
type Bound struct {
	Near Near `json:"near"`
	// LowPower is for GPUs of at most 75 W.
	LowPower bool `json:"low_power"`
	// Bound and Median are of |measured - estimated| / estimated; Samples is how many there are.
	Bound   float64 `json:"bound"`
	Median  float64 `json:"median"`
	Samples int     `json:"samples"`
}

// Deviation is how far a measured time is from the estimate, relative to the estimate: what a bound around an estimate has to cover.
func Deviation(measured, estimated float64) float64 { return math.Abs(measured/estimated - 1) }

// BoundOf is the bound that deviations ask for: the next larger one after boundLevel of them, one more counted than there are, so that a new one of the same
// kind is covered as often as promised.
func BoundOf(deviations []float64) float64 {
	if len(deviations) == 0 {
		return math.Inf(1)
	}
	sorted := slices.Sorted(slices.Values(deviations))
	return sorted[min(len(sorted)-1, int(math.Ceil(boundLevel*float64(len(sorted)+1)))-1)]
}

// IsLowPower says that a GPU slows down as it warms.
func IsLowPower(g *gpu.Sheet) bool { return g.Watts <= lowPower }

// ShippedBounds are those of estimator/data/bounds.json.
func ShippedBounds() ([]Bound, error) {
	var all []Bound
	if err := json.Unmarshal(data.Bounds(), &all); err != nil {
		return nil, fmt.Errorf("estimator/data/bounds.json: %w", err)
	}
	for _, b := range all {
		if !(b.Bound > 0) || math.IsInf(b.Bound, 0) {
			return nil, fmt.Errorf("estimator/data/bounds.json: a bound of %g", b.Bound)
		}
	}
	return all, nil
}

// kindOf is the kind of a batch whose kernels take these times at a share, and which takes full in all.
func kindOf(launches []lower.Launch, times []*timed, share int, full float64) Kind {
	measured, device := 0.0, 0.0
	for i := range launches {
		t := times[i].at[share] * launches[i].Repeat
		device += t
		switch launches[i].Family {
		case kernel.Convolution, kernel.Direct, kernel.Move:
		default:
			if !launches[i].Guessed {
				measured += t
			}
		}
	}
	if measured >= mostlyMeasured*device && device >= full/2 {
		return Measured
	}
	return Other
}

// near says whether the kernels of a GPU that computes as this one are among those that the kernel model was fitted to.
func (d *Device) near() Near {
	sheets, err := gpu.All()
	if err != nil {
		return SheetOnly
	}
	for i := range sheets {
		if slices.Contains(d.Kernels.Measured, sheets[i].Name) && sheets[i].ComputesAs(&d.Sheet) {
			return OwnKernels
		}
	}
	return SheetOnly
}

// bound is the relative bound of a batch of a kind, and what it was found on.
func (d *Device) bound(k Kind, near Near) (float64, string) {
	low := IsLowPower(&d.Sheet)
	for _, b := range d.Bounds {
		if k != Measured || b.Near != near || b.LowPower != low {
			continue
		}
		basis := fmt.Sprintf("%d whole transformers in PyTorch, with the %s of their GPU", b.Samples, b.Near)
		if low {
			basis += ", GPUs of at most 75 W, which slow down as they warm"
		}
		if !d.Runtime.Modules { // what was measured ran in PyTorch
			return max(b.Bound, Priors(d.Runtime).Bound), basis + "; none were measured with " + d.Runtime.Name
		}
		return b.Bound, basis
	}
	return d.Factors.Bound, d.Factors.Source
}
