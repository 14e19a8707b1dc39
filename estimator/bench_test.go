// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/data"
)

// BenchmarkEstimate is the whole grid of one of the larger graphs: 6 batches by 10 shares.
func BenchmarkEstimate(b *testing.B) {
	for _, name := range []string{"resnet50", "densenet121", "efficientnet_b7"} {
		b.Run(name, func(b *testing.B) {
			g, err := data.Graph(os.DirFS("data"), "torchvision/"+name)
			require.NoError(b, err)
			d := device(b, "A100", "")
			b.ReportAllocs()
			for b.Loop() {
				estimate(b, g, d, estimator.DefaultGrid(32))
			}
		})
	}
}
