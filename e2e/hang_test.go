// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A tritonserver that hangs keeps its connections and answers nothing. It is
// taken out within the probe's deadline, what waited for it is answered
// elsewhere, and another is started in its place.
func TestHungTritonIsReplaced(t *testing.T) {
	t.Parallel()
	c := start(t, 2, map[string]any{"driver": map[string]any{
		"kind": "process", "tritonserver": setting(t, "CONCH_TRITONSERVER"), "probe": map[string]any{"period": "100ms", "deadline": "2s"},
	}}, "emulated")
	a := admin(t, c)
	since := lastEvent(t, a)
	hung := serverOf(t, c, "gpu1")
	r := underLoad(t, c, 30, func() {
		require.NoError(t, syscall.Kill(hung, syscall.SIGSTOP))
		require.Eventually(t, func() bool {
			events := strings.Join(eventKinds(t, a, since), "\n")
			return strings.Contains(events, "partition gpu1 is down: the server hangs") && strings.Contains(events, "partition gpu1 is up again")
		}, 2*time.Minute, 50*time.Millisecond)
		require.ErrorIs(t, syscall.Kill(hung, 0), syscall.ESRCH)
	})
	requireAllAnswered(t, r)
}
