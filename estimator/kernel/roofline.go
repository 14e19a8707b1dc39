// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/estimator/gpu"
)

// A tile is what one thread block of a matrix product computes, and how much of a multiprocessor's peak its inner loop reaches.
var tiles = [...]struct{ m, n, reach float64 }{
	{256, 128, 1}, {128, 256, 1}, {128, 128, .97}, {128, 64, .9}, {64, 128, .9}, {64, 64, .75}, {128, 32, .7}, {32, 128, .7}, {32, 32, .45},
}

// threadsPerBlock is the block of an element-wise kernel; every thread takes four elements.
const (
	threadsPerBlock   = 256
	elementsPerThread = 4
)

// Bound is a kernel's lower time and what it came from.
type Bound struct {
	// Compute and Memory are seconds at the roofs, Compute with whole waves of tiles; Seconds is the larger.
	Compute, Memory, Seconds float64
	// Ideal is FLOPs over the peak, without waves.
	Ideal float64
	// Blocks are thread blocks, Waves blocks over multiprocessors in use.
	Blocks, Waves float64
}

// CPU is the architecture of a sheet that describes a processor: it computes in no tiles and no waves.
const CPU = "cpu"

// Peak is the rate of a precision on a GPU, operations per second: that of FP32 where the GPU has nothing faster.
func Peak(g *gpu.Sheet, p Precision) float64 {
	rate := g.FP32
	switch p {
	case TF32:
		rate = max(rate, g.TF32)
	case FP16:
		rate = max(rate, g.FP16)
	case INT8:
		rate = max(rate, g.INT8)
	}
	return rate
}

// Roofline is the bound of a kernel on a share of a GPU: so many of its multiprocessors, and the bandwidth that these can draw. Saturation is the
// share of multiprocessors that draws all of the bandwidth; share 1 always does.
func Roofline(k *Kernel, g *gpu.Sheet, share, saturation float64) Bound {
	sms := max(1, math.Floor(g.SMs*share+.5))
	peak := Peak(g, k.Precision) * sms / g.SMs
	bandwidth := g.Bandwidth * min(1, share/saturation)
	b := Bound{Memory: k.Bytes() / bandwidth, Ideal: k.FLOPs / peak}
	switch {
	case g.Architecture == CPU:
		b.Compute, b.Blocks, b.Waves = b.Ideal, 1, 1
	case k.Family == Product || k.Family == Convolution:
		b.Compute = math.Inf(1)
		m, n := positive(k.M), positive(k.N)
		for _, t := range tiles {
			blocks := positive(k.Batch) * math.Ceil(m/t.m) * math.Ceil(n/t.n)
			waves := math.Ceil(blocks / sms)
			if seconds := waves * t.m * t.n * 2 * positive(k.Depth) / (peak / sms * t.reach); seconds < b.Compute {
				b.Compute, b.Blocks, b.Waves = seconds, blocks, blocks/sms
			}
		}
	default:
		b.Blocks = math.Ceil(k.Elements() / (threadsPerBlock * elementsPerThread))
		if k.Family == Softmax || k.Family == Norm {
			b.Blocks = max(1, k.M)
		}
		resident := max(1, g.Threads/threadsPerBlock)
		b.Waves = b.Blocks / (sms * resident)
		b.Compute = b.Ideal
		// Few blocks cannot keep enough loads in flight to draw the bandwidth: a quarter of the resident threads does.
		if fill := b.Blocks / (g.SMs * resident / 4); fill < 1 {
			b.Memory = max(b.Memory, k.Bytes()/(g.Bandwidth*max(fill, 1/g.SMs)))
		}
	}
	b.Seconds = max(b.Compute, b.Memory)
	return b
}

// Elements that the kernel's threads share out: those that it writes; those that it reads where it makes few of many.
func (k *Kernel) Elements() float64 {
	switch k.Family {
	case Product, Convolution, Direct:
		return k.Batch * k.M * k.N
	case Softmax, Norm:
		return k.M * k.N
	}
	return max(k.M*max(k.N, 1), k.Sources)
}

// Features of matrix products, and of kernels that are bound by memory: names in the order of the rows that features write.
var (
	productNames = []string{"utilisation", "memory_over_bound", "compute_over_memory", "watts_per_tflops", "batched",
		"batch", "m", "n", "depth", "waves", "wave_rest", "bytes_over_l2", "one_over_l2", "intensity"}
	rowNames  = []string{"unary", "binary", "power", "softmax", "norm", "rows", "width", "bytes_over_l2", "width_over_l1", "balance", "watts_per_tflops", "waves", "width_rest"}
	moveNames = append(slices.Clone(rowNames), "intensity")
)

func log(v float64) float64 { return math.Log(max(v, 1e-30)) }

// productFeatures writes the row of a matrix product into row.
func productFeatures(k *Kernel, g *gpu.Sheet, b *Bound, row []float64) []float64 {
	sms := g.SMs
	blocks := positive(k.Batch) * math.Ceil(positive(k.M)/128) * math.Ceil(positive(k.N)/128)
	waves := blocks / sms
	size := k.Bytes() / max(1, k.Batch*k.M*k.Depth+k.Batch*k.Depth*k.N+k.Batch*k.M*k.N)
	if k.Shared {
		size = 4
	}
	product := size * (k.M*k.Depth + k.Depth*k.N + k.M*k.N)
	return append(row[:0],
		log(b.Ideal/b.Seconds), log(b.Memory/b.Seconds), log(b.Compute/b.Memory), log(g.Watts/(g.FP32/1e12)), flag(!k.Shared),
		log(positive(k.Batch)), log(positive(k.M)), log(positive(k.N)), log(positive(k.Depth)),
		log(waves), math.Mod(min(waves, 4), 1), log(k.Bytes()/g.L2), log(product/g.L2), log(k.FLOPs/k.Bytes()),
	)
}

// rowFeatures writes the row of a kernel that is bound by memory.
func rowFeatures(k *Kernel, g *gpu.Sheet, b *Bound, row []float64) []float64 {
	width := positive(k.N)
	return append(row[:0],
		flag(k.Family == Unary), flag(k.Family == Binary), flag(k.Family == Power), flag(k.Family == Softmax), flag(k.Family == Norm),
		log(positive(k.M)), log(width), log(k.Bytes()/g.L2), log(width*4/128e3), log(g.FP32/g.Bandwidth), log(g.Watts/(g.FP32/1e12)), log(b.Waves),
		math.Mod(width, 1024)/1024,
	)
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
