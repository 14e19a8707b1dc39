// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/modelcases"
)

// A load that a real Triton refuses is distinguished from one on which it hangs.
// The end-to-end tests try which loads it refuses.
func TestARealServerRefusesOrHangs(t *testing.T) {
	t.Parallel()
	server := os.Getenv("CONCH_TRITONSERVER")
	if server == "" {
		t.Skip("CONCH_TRITONSERVER names no tritonserver")
	}
	w := newWorld(t, server, nil, nil)
	patience := map[string]time.Duration{"dimension_zero": time.Minute, "no_labels": time.Minute, "version_without_a_file": time.Second}
	var cases []modelcases.Case
	for _, c := range modelcases.Refused() {
		if patience[c.Name] > 0 {
			cases = append(cases, c)
		}
	}
	require.Len(t, cases, len(patience))
	require.NoError(t, modelcases.Write(w.repo, cases...))
	p := w.start()
	for _, c := range cases {
		ctx, cancel := context.WithTimeout(t.Context(), patience[c.Name])
		err := p.Load(ctx, c.Name)
		cancel()
		var refused *LoadError
		require.ErrorAs(t, err, &refused, c.Name)
		require.Equal(t, c.Hangs, refused.Hung, "%s: %v", c.Name, err)
	}
	require.NoError(t, p.Kill(t.Context()))
}
