// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/estimator/regress"
)

// Sample is a timed execution of a whole model: its kernels at a batch, the share that it had, and the seconds of a batch.
type Sample struct {
	Model    string
	Batch    int
	Launches []lower.Launch
	// Bytes are those of the inputs.
	Bytes float64
	// Share is the part of the GPU, 0 to 1.
	Share   float64
	Seconds float64
	// Line is true if Seconds are those of a straight line that was fitted through all batch sizes: the predictions at the model's batch sizes are
	// then compared as such a line too. A curve that the host bounds at small batches and the device at large ones is no line.
	Line bool
}

// line draws a straight line by least squares through times at batches, as if every size from 1 to the largest had been measured: between two batches
// times are taken to change evenly. It replaces the times by the line's; where that is next to nothing or less, a tenth of the time stays.
func line(batches, seconds []float64) {
	last := len(batches) - 1
	var n, b, bb, y, by float64
	at := 0
	for x := batches[0]; x <= batches[last]; x++ {
		for at < last-1 && x > batches[at+1] {
			at++
		}
		part := (x - batches[at]) / (batches[at+1] - batches[at])
		interpolated := seconds[at]*(1-part) + seconds[at+1]*part
		n, b, bb, y, by = n+1, b+x, bb+x*x, y+interpolated, by+x*interpolated
	}
	alpha := (n*by - b*y) / (n*bb - b*b)
	beta := (y - alpha*b) / n
	for i, x := range batches {
		seconds[i] = max(beta+alpha*x, seconds[i]/10)
	}
}

// lines are the samples of each model that are points of a line, by batch, where there are two or more.
func lines(samples []Sample) [][]int {
	type key struct {
		model string
		share float64
	}
	by := map[key][]int{}
	var order []key
	for i, s := range samples {
		if k := (key{s.Model, s.Share}); s.Line {
			if by[k] == nil {
				order = append(order, k)
			}
			by[k] = append(by[k], i)
		}
	}
	var all [][]int
	for _, k := range order {
		indices := by[k]
		slices.SortFunc(indices, func(a, b int) int { return cmp.Compare(samples[a].Batch, samples[b].Batch) })
		indices = slices.CompactFunc(indices, func(a, b int) bool { return samples[a].Batch == samples[b].Batch })
		if len(indices) > 1 {
			all = append(all, indices)
		}
	}
	return all
}

// predictor predicts samples under factors, again and again.
type predictor struct {
	all     []prepared
	lines   [][]int
	batches [][]float64
	seconds []float64
	scratch []float64
}

func newPredictor(d *Device, samples []Sample) *predictor {
	p := &predictor{all: prepare(d, samples), lines: lines(samples), seconds: make([]float64, len(samples))}
	for _, l := range p.lines {
		var b []float64
		for _, i := range l {
			b = append(b, float64(samples[i].Batch))
		}
		p.batches = append(p.batches, b)
	}
	return p
}

// predict gives the seconds of all samples; they are its own, until it is called again.
func (p *predictor) predict(v *[factors]float64) []float64 {
	for i := range p.all {
		p.seconds[i] = p.all[i].span(v)
	}
	for k, l := range p.lines {
		p.scratch = p.scratch[:0]
		for _, i := range l {
			p.scratch = append(p.scratch, p.seconds[i])
		}
		line(p.batches[k], p.scratch)
		for n, i := range l {
			p.seconds[i] = p.scratch[n]
		}
	}
	return p.seconds
}

// prepared is a sample with all that does not depend on factors.
type prepared struct {
	share, bytes float64
	launches     []preparedLaunch
}

type preparedLaunch struct {
	family                                    int
	within                                    bool
	compute, memory, fill, correction, repeat float64
}

// The factors in the order of vector.
const (
	fFixed = iota
	fLaunch
	fFloor
	fProduct
	fPointwise
	fWindow
	fGrouped
	fDirect
	fMove
	fSaturation
	fCopy
	// fRow is no factor: element-wise kernels, softmax and normalisation were measured.
	fRow
	factors = fRow + 1
)

func (f *Factors) vector() [factors]float64 {
	return [factors]float64{f.Fixed, f.Launch, f.Floor, f.Product, f.Pointwise, f.Window, f.Grouped, f.Direct, f.Move, f.Saturation, f.Copy, 1}
}

func (f *Factors) set(v [factors]float64) {
	f.Fixed, f.Launch, f.Floor, f.Product, f.Pointwise = v[fFixed], v[fLaunch], v[fFloor], v[fProduct], v[fPointwise]
	f.Window, f.Grouped, f.Direct, f.Move, f.Saturation, f.Copy = v[fWindow], v[fGrouped], v[fDirect], v[fMove], v[fSaturation], v[fCopy]
}

func familyOf(k *kernel.Kernel) int {
	switch k.Family {
	case kernel.Product:
		return fProduct
	case kernel.Convolution:
		switch {
		case k.Batch > 1:
			return fGrouped
		case k.Window > 1:
			return fWindow
		}
		return fPointwise
	case kernel.Direct:
		return fDirect
	case kernel.Move:
		return fMove
	}
	return fRow
}

func prepare(d *Device, samples []Sample) []prepared {
	type key struct {
		kernel.Kernel
		share float64
	}
	known := map[key]preparedLaunch{}
	var row []float64
	out := make([]prepared, len(samples))
	for i := range samples {
		s := &samples[i]
		p := prepared{share: s.Share, bytes: s.Bytes, launches: make([]preparedLaunch, len(s.Launches))}
		for j := range s.Launches {
			l := &s.Launches[j]
			k := key{l.Kernel, s.Share}
			launch, ok := known[k]
			if !ok {
				full := kernel.Roofline(&l.Kernel, &d.Sheet, 1, 1)
				row = make([]float64, 0, 16)
				launch = preparedLaunch{family: familyOf(&l.Kernel), correction: d.Kernels.Correction(&l.Kernel, &d.Sheet, &full, row)}
				// With a saturation near zero a share draws all of the bandwidth: what is left of Memory is what few blocks can draw.
				b := kernel.Roofline(&l.Kernel, &d.Sheet, s.Share, 1e-6)
				launch.compute, launch.fill, launch.memory = b.Compute, b.Memory, l.Bytes()/d.Sheet.Bandwidth
				known[k] = launch
			}
			launch.repeat, launch.within = l.Repeat, l.Within
			p.launches[j] = launch
		}
		out[i] = p
	}
	return out
}

// span is the time of a prepared sample under factors: the same rule as that of an estimate.
func (p *prepared) span(v *[factors]float64) float64 {
	host, device := 0.0, 0.0
	draw := min(1, p.share/v[fSaturation])
	if p.share >= 1 {
		draw = 1
	}
	for i := range p.launches {
		l := &p.launches[i]
		t := max(l.compute, l.fill, l.memory/draw)*l.correction*v[l.family] + v[fFloor]
		if !l.within {
			host += v[fLaunch]
		}
		device = max(device, host) + t*l.repeat
	}
	return v[fFixed] + v[fCopy]*p.bytes + device
}

// Fit fits factors to whole models, from start, by coordinate search on the mean absolute logarithm of predicted over measured. Each model weighs the same.
// A factor is drawn towards its start by prior (0 is none): few models leave some factors undetermined.
func Fit(d *Device, samples []Sample, start Factors, prior float64) (Factors, error) {
	if len(samples) == 0 {
		return start, errors.New("estimator: no samples to fit")
	}
	p := newPredictor(d, samples)
	count := map[string]float64{}
	for _, s := range samples {
		count[s.Model]++
	}
	weight := make([]float64, len(samples))
	for i, s := range samples {
		weight[i] = 1 / count[s.Model] / float64(len(count))
	}
	origin := start.vector()
	loss := func(v *[factors]float64) float64 {
		sum := 0.0
		for i, seconds := range p.predict(v) {
			sum += weight[i] * math.Abs(math.Log(seconds/samples[i].Seconds))
		}
		for j := range v {
			if origin[j] > 0 && v[j] > 0 {
				sum += prior * math.Abs(math.Log(v[j]/origin[j]))
			}
		}
		return sum
	}
	// Products were measured one by one on many GPU types: whole models of convolutions have nothing to say about them.
	least := [factors]float64{0, 1e-7, 1e-7, 1, .2, .15, .2, .2, .2, .05, 1e-12, 1}
	most := [factors]float64{.002, 200e-6, 20e-6, 1, 8, 8, 12, 12, 12, 1, 2e-9, 1}
	best := origin
	value := loss(&best)
	for step := .5; step > .01; step /= 2 {
		for moved := true; moved; {
			moved = false
			for j := range best {
				for _, by := range []float64{1 + step, 1 / (1 + step)} {
					try := best
					try[j] = min(max(try[j]*by, least[j]), most[j])
					if l := loss(&try); l < value-1e-6 {
						best, value, moved = try, l, true
					}
				}
			}
		}
	}
	out := start
	out.set(best)
	return out, nil
}

// Errors are the relative errors of samples under factors, in their order.
func Errors(d *Device, samples []Sample, f Factors) []float64 {
	out := Predict(d, samples, f)
	for i := range out {
		out[i] = math.Abs(out[i]/samples[i].Seconds - 1)
	}
	return out
}

// Predict is the seconds of samples under factors, in their order.
func Predict(d *Device, samples []Sample, f Factors) []float64 {
	v := f.vector()
	return newPredictor(d, samples).predict(&v)
}

// LeaveOut fits without each group of models in turn, and returns the predictions for the samples that were left out: seconds, in the order of samples. group names the group of a
// model.
func LeaveOut(d *Device, samples []Sample, start Factors, prior float64, group func(model string) string) ([]float64, error) {
	groups := map[string]bool{}
	for _, s := range samples {
		groups[group(s.Model)] = true
	}
	predicted := make([]float64, len(samples))
	for g := range groups {
		var fit, judge []Sample
		var at []int
		for i, s := range samples {
			if group(s.Model) == g {
				judge, at = append(judge, s), append(at, i)
			} else {
				fit = append(fit, s)
			}
		}
		f, err := Fit(d, fit, start, prior)
		if err != nil {
			return nil, err
		}
		for i, seconds := range Predict(d, judge, f) {
			predicted[at[i]] = seconds
		}
	}
	return predicted, nil
}

// Median and P90 of relative errors.
func Median(errs []float64) float64 { return regress.Quantile(errs, .5) }

// P90 is the 90th percentile.
func P90(errs []float64) float64 { return regress.Quantile(errs, .9) }
