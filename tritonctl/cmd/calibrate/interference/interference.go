// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package interference is `tritonctl calibrate interference`.
package interference

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/estimator/interference"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var from string
	c := &cobra.Command{
		Use:   "interference --from FILE",
		Short: "Fit what co-runners cost on a GPU to measured pairs",
		Long: `interference fits gpulet's linear model of the slowdown by a co-runner to pairs that
were measured, by type of GPU: seven in ten are fitted, the other three judge. It
prints the coefficients as conch.yaml takes them, and the error beside that of
assuming no interference.

The file is CSV with the columns gpu_type, l2_self, l2_other, bandwidth_self,
bandwidth_other (fractions of the GPU, each model alone on its share) and slowdown
(latency beside the other over latency alone).`,
		Example: `  tritonctl calibrate interference --from pairs.csv`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			file, err := os.Open(from)
			if err != nil {
				return err
			}
			pairs, err := interference.Read(file)
			_ = file.Close() // it was only read
			if err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
			var fits []interference.Fit
			for _, gpuType := range slices.Sorted(maps.Keys(pairs)) {
				fit, err := interference.Of(gpuType, pairs[gpuType])
				if err != nil {
					return fmt.Errorf("%s: %w", from, err)
				}
				fits = append(fits, fit)
			}
			return output.Print(f.Out, f.Format, fits, func(t *output.Table) { draw(t, fits) })
		},
	}
	c.Flags().StringVar(&from, "from", "", "file of measured pairs")
	_ = c.MarkFlagRequired("from")
	return c
}

func draw(t *output.Table, fits []interference.Fit) {
	t.Line("interference:")
	for _, f := range fits {
		t.Line(fmt.Sprintf("  - {type: %s, l2Self: %.4f, l2Other: %.4f, bandwidthSelf: %.4f, bandwidthOther: %.4f, constant: %.4f}",
			f.GPUType, f.L2Self, f.L2Other, f.BandwidthSelf, f.BandwidthOther, f.Constant))
		t.Line(fmt.Sprintf("    # %d pairs; of %d others half are within %.1f%%, 90%% within %.1f%%, 95%% within %.1f%%; assuming no interference %.1f%%, %.1f%%, %.1f%%",
			f.Pairs, f.Judged, 100*f.Error[0], 100*f.Error[1], 100*f.Error[2], 100*f.ErrorOfNone[0], 100*f.ErrorOfNone[1], 100*f.ErrorOfNone[2]))
	}
}
