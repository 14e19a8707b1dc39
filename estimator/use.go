// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"cmp"
	"slices"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/lower"
)

// tau is how far apart two kernels may start and still run together (USHER, sections 3.2 and 5.6: 0.001 ms).
const tau = 1e-6

// together counts the kernels that could run beside another: those that start within tau of another when each starts as soon as what it waits for is
// done. On one stream, which is what ONNX Runtime and PyTorch use, they do not; TensorRT's auxiliary streams and CUDA graphs run them so.
func together(launches []lower.Launch, times []*timed, share int, tau float64) int {
	start := make([]float64, len(launches))
	end := make([]float64, len(launches))
	for i := range launches {
		if r := launches[i].Ready; r >= 0 {
			start[i] = end[r]
		}
		end[i] = start[i] + times[i].at[share]*launches[i].Repeat
	}
	slices.SortFunc(start, cmp.Compare)
	n := 0
	for i := range start {
		if i > 0 && start[i]-start[i-1] <= tau || i+1 < len(start) && start[i+1]-start[i] <= tau {
			n++
		}
	}
	return n
}

// utilisation of a GPU while a model runs on all of it.
type utilisation struct{ compute, bandwidth, l2 float64 }

// use averages over the device's time: the part of the multiprocessors that have blocks, of the bandwidth, and of what L2 passes.
func use(launches []lower.Launch, times []*timed, share int, g *gpu.Sheet) utilisation {
	var u utilisation
	total := 0.0
	for i := range launches {
		t := times[i]
		seconds := t.at[share] * launches[i].Repeat
		total += seconds
		busy := min(1, t.full.Waves)
		u.compute += seconds * busy
		u.bandwidth += launches[i].Bytes() * launches[i].Repeat
		u.l2 += l2Bytes(&launches[i]) * launches[i].Repeat
	}
	if total <= 0 {
		return utilisation{}
	}
	u.compute /= total
	u.bandwidth = min(1, u.bandwidth/(total*g.Bandwidth))
	u.l2 = min(1, u.l2/(total*g.Bandwidth*3)) // L2 passes about three times what the memory does
	return u
}

// l2Bytes is what blocks read through L2: every tile of a product reads its rows and columns again.
func l2Bytes(l *lower.Launch) float64 {
	if l.Depth > 0 {
		const tile = 128
		return max(l.Bytes(), 4*l.Batch*l.M*l.N*l.Depth*(1/min(tile, max(l.M, 1))+1/min(tile, max(l.N, 1)))+l.Write)
	}
	return l.Bytes()
}
