// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDeadlinesThatClientsRoundUp: a client of gRPC's C core with 12.34 s says 12.4 s, and cancels 60 ms before that.
func TestDeadlinesThatClientsRoundUp(t *testing.T) {
	came := time.Now()
	for name, c := range map[string]struct {
		said, gone time.Duration
		want       string
	}{
		"rounded to tenths":  {12400 * time.Millisecond, 12340 * time.Millisecond, GoneDeadline},
		"rounded to seconds": {101 * time.Second, 100_100 * time.Millisecond, GoneDeadline},
		"said as it is":      {50 * time.Millisecond, 49 * time.Millisecond, GoneDeadline},
		"in the middle":      {12400 * time.Millisecond, 6 * time.Second, GoneCancel},
		"soon before":        {100 * time.Millisecond, 80 * time.Millisecond, GoneCancel},
	} {
		ctx, cancel := context.WithDeadline(context.Background(), came.Add(c.said))
		require.Equal(t, c.want, goneReason(ctx, came, came.Add(c.gone)), name)
		cancel()
	}
}
