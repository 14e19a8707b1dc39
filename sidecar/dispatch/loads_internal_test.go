// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/clock"
)

// TestALoadThatIsRefusedIsNotAskedFor: the refusal comes after a request has joined the load and before it begins it.
func TestALoadThatIsRefusedIsNotAskedFor(t *testing.T) {
	var begun []string
	l := loads{clock: clock.System(), limit: 2, patience: time.Hour, begun: func(model string) { begun = append(begun, model) }, models: map[string]*load{}}
	refused := status.Error(codes.Unavailable, "no room for it")
	reason, err := l.await(t.Context(), t.Context(), "m", 0, func() (bool, error) {
		l.refuse("m", refused)
		return false, nil
	})
	require.Equal(t, refused, err)
	require.Equal(t, reasonLoadRefused, reason)
	require.Empty(t, begun)

	again := 0
	reason, err = l.await(t.Context(), t.Context(), "m", 0, func() (bool, error) { again++; return again > 1, wakeOnce(&l, again) })
	require.NoError(t, err)
	require.Empty(t, reason)
	require.Equal(t, []string{"m"}, begun, "who comes later asks anew")
}

// wakeOnce wakes the requests that wait, the first time.
func wakeOnce(l *loads, n int) error {
	if n == 1 {
		l.wake(func(string) bool { return false })
	}
	return nil
}
