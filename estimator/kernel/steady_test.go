// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
)

// Products of nearly the same dimensions whose times differ by a factor were timed at a changing clock; kernels that are bound by memory are kept.
func TestProductsAtAChangingClockAreLeftOut(t *testing.T) {
	l4, err := gpu.Find("L4")
	require.NoError(t, err)
	a100, err := gpu.Find("A100")
	require.NoError(t, err)
	var all []kernel.Measurement
	for i := range 40 {
		for _, g := range []*gpu.Sheet{&l4, &a100} {
			k := kernel.MatMul(16, 512+8*float64(i), 512, 64, 4, false)
			b := kernel.Roofline(&k, g, 1, 1)
			slow := 1.5
			if g == &l4 && i%2 == 1 {
				slow = 2.1
			}
			all = append(all, kernel.Measurement{Kernel: k, GPU: g, Seconds: b.Seconds * slow})
		}
		all = append(all, kernel.Measurement{Kernel: kernel.Rows(kernel.Softmax, 512, 512, 1, 4), GPU: &l4, Seconds: 1e-5})
	}
	kept, left := kernel.Steady(all)
	require.Equal(t, []string{"L4, batched products: neighbours differ by 40%"}, left)
	require.Len(t, kept, 80)
	for _, m := range kept {
		require.False(t, m.GPU == &l4 && m.Kernel.Family == kernel.Product)
	}
}

// Of the GPUs that were measured it is the two of 70 W.
func TestGPUsOfLowPowerWereNotSteady(t *testing.T) {
	all, err := kernel.ReadAll(os.DirFS("../data"))
	require.NoError(t, err)
	_, left := kernel.Steady(all)
	require.Len(t, left, 3)
	require.Regexp(t, "^L4, batched products", left[0])
	require.Regexp(t, "^L4, products with shared weights", left[1])
	require.Regexp(t, "^T4, batched products", left[2])
}
