// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/lower"
	"github.com/conch-serving/conch/estimator/regress"
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

// useNames are the features that utilisations are regressed on: averages over the device's time.
var useNames = []string{"busy", "arithmetic", "bandwidth", "l2", "log_kernel_seconds"}

// useFeatures are the part of the multiprocessors that have blocks, of the arithmetic peak, of the bandwidth, of what L2 passes (about three times
// the bandwidth), and how long a kernel takes on average.
func useFeatures(launches []lower.Launch, times []*timed, share int, g *gpu.Sheet) []float64 {
	var busy, arithmetic, bandwidth, l2, total, count float64
	for i := range launches {
		t, repeat := times[i], launches[i].Repeat
		seconds := t.at[share] * repeat
		total += seconds
		count += repeat
		busy += seconds * min(1, t.full.Waves)
		arithmetic += launches[i].FLOPs * repeat
		bandwidth += launches[i].Bytes() * repeat
		l2 += l2Bytes(&launches[i]) * repeat
	}
	if total <= 0 || count <= 0 {
		return make([]float64, len(useNames))
	}
	return []float64{
		busy / total, min(1, arithmetic/(total*g.FP32)), min(1, bandwidth/(total*g.Bandwidth)), min(1, l2/(total*g.Bandwidth*3)), math.Log(total / count),
	}
}

// l2Bytes is what blocks read through L2: every tile of a product reads its rows and columns again.
func l2Bytes(l *lower.Launch) float64 {
	if l.Depth > 0 {
		const tile = 128
		return max(l.Bytes(), 4*l.Batch*l.M*l.N*l.Depth*(1/min(tile, max(l.M, 1))+1/min(tile, max(l.N, 1)))+l.Write)
	}
	return l.Bytes()
}

// Uses predict how much of a GPU a model uses while it has all of it, as fractions: what a profiler shows as its SM, L2 and memory throughput, averaged
// over the model's kernels.
type Uses struct {
	Creq      *regress.Stack `json:"creq"`
	L2        *regress.Stack `json:"l2"`
	Bandwidth *regress.Stack `json:"bandwidth"`
}

// utilisation is what Uses predict.
type utilisation struct{ compute, bandwidth, l2 float64 }

func (u *Uses) of(features []float64) utilisation {
	fraction := func(s *regress.Stack) float64 { return min(max(s.Predict(features), .005), 1) }
	return utilisation{compute: fraction(u.Creq), bandwidth: fraction(u.Bandwidth), l2: fraction(u.L2)}
}

// ShippedUses are those of estimator/data/uses.json.
func ShippedUses() (*Uses, error) {
	var u Uses
	if err := json.Unmarshal(data.Uses(), &u); err != nil {
		return nil, fmt.Errorf("estimator/data/uses.json: %w", err)
	}
	for _, s := range []*regress.Stack{u.Creq, u.L2, u.Bandwidth} {
		if s == nil || !slices.Equal(s.Names, useNames) {
			return nil, fmt.Errorf("estimator/data/uses.json: not of features %v: train again", useNames)
		}
		if err := s.Check(); err != nil {
			return nil, fmt.Errorf("estimator/data/uses.json: %w", err)
		}
	}
	return &u, nil
}

// UseFeatures are the features of a sample on a device, with their names.
func UseFeatures(d *Device, launches []lower.Launch) (names []string, row []float64) {
	c := newClock(d, []float64{1})
	times := make([]*timed, len(launches))
	for i := range launches {
		times[i] = c.time(launches[i].Kernel)
	}
	return useNames, useFeatures(launches, times, 0, &d.Sheet)
}
