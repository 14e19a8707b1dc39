// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestALoadThatIsRefusedIsNotAskedFor: the refusal comes after a request has joined the load and before it begins it.
func TestALoadThatIsRefusedIsNotAskedFor(t *testing.T) {
	var begun []string
	l := loads{limit: 2, patience: time.Hour, begun: func(model string) { begun = append(begun, model) }, models: map[string]*load{}}
	refused := status.Error(codes.Unavailable, "no room for it")
	d := New(Options{})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	waits := new(ticket)
	waits.open(t.Context(), d, 0)
	a, ok := l.until(waits, "m", func() (bool, error) {
		l.fail("m", refused)
		return false, nil
	})
	require.False(t, ok)
	require.Equal(t, refusal(reasonLoadDenied, refused), a)
	require.Empty(t, begun)

	again := 0
	a, ok = l.until(waits, "m", func() (bool, error) { again++; return again > 1, wakeOnce(&l, again) })
	require.True(t, ok)
	require.Equal(t, answer{}, a)
	require.Equal(t, []string{"m"}, begun, "who comes later asks anew")
}

// wakeOnce wakes the requests that wait, the first time.
func wakeOnce(l *loads, n int) error {
	if n == 1 {
		l.wake(func(string) bool { return false })
	}
	return nil
}
