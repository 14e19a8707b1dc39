// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/tritonctl/top"
)

// A screen ends with the person's q or with its context, and takes its source along.
func TestRunEndsWithEverythingItStarted(t *testing.T) {
	for name, end := range map[string]func(keys *os.File, cancel func()){
		"q":       func(keys *os.File, _ func()) { _, _ = keys.WriteString("q") },
		"context": func(_ *os.File, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			in, keys, err := os.Pipe()
			require.NoError(t, err)
			defer in.Close()
			defer keys.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			sourceEnded := false
			source := func(ctx context.Context, yield func(*top.State), _ func(error)) error {
				yield(world())
				end(keys, cancel)
				<-ctx.Done()
				sourceEnded = true
				return nil
			}
			var out bytes.Buffer
			require.NoError(t, top.Run(ctx, source, top.Terminal{In: in, Out: &out, Environment: []string{"TERM=xterm", "NO_COLOR=1"}}))
			require.True(t, sourceEnded)
		})
	}
}

// A source that cannot go on ends the screen with its error: a wrong token does not become right.
func TestRunEndsWithItsSource(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	in, keys, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer keys.Close()
	refused := errors.New("the token is wrong")
	source := func(context.Context, func(*top.State), func(error)) error { return refused }
	var out bytes.Buffer
	require.ErrorIs(t, top.Run(t.Context(), source, top.Terminal{In: in, Out: &out, Environment: []string{"TERM=xterm"}}), refused)
}
