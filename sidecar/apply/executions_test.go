// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/apply"
)

// A server of conch's own executes as many batches at once as Options.Executions says, each of any of its models.
func TestServersExecuteSeveralBatchesAtOnce(t *testing.T) {
	for executions, want := range map[int]struct {
		atOnce int
		mask   uint64
	}{0: {0, 0b1}, 1: {1, 0b1}, 3: {3, 0b111}} {
		bubble.Test(t, func(t *testing.T) {
			w := newWorld(t)
			r := w.reconciler(func(o *apply.Options) { o.Executions = executions })
			require.NoError(t, set(t, r, desired(1, w.revision("r1", map[string]int{"a": 8, "b": 8}), partition("p", "g0", 100, "a", "b"))))
			require.Equal(t, want.atOnce, w.table.Partitions[0].Executions)
			for _, model := range []string{"a", "b"} {
				require.Equal(t, want.mask, w.table.Models[model].Places[0].Executions, model)
			}
			require.Equal(t, max(1, executions), r.Observed().Partitions[0].Executions)
			require.NoError(t, r.Close(context.Background(), true))
		})
	}
}
