// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// A server that is stopped keeps its connections open and never answers: it is
// reported, killed and started again with its models. One that is busy is left
// alone.
func TestAServerThatHangsIsRestarted(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server string, env map[string]string) {
		w := newWorld(t, server, env, func(o *ProcessOptions) {
			o.Health = Health{Period: 20 * time.Millisecond, Deadline: 2 * time.Second}
		})
		w.model("m", "pass")
		code := filepath.Join(w.repo, "m", "1", "model.py")
		text, err := os.ReadFile(code)
		require.NoError(t, err)
		long := strings.ReplaceAll(string(text), "time.sleep(0.3)", "time.sleep(2.5)")
		require.NotEqual(t, string(text), long)
		require.NoError(t, os.WriteFile(code, []byte(long), 0o644))
		p := w.start()
		require.NoError(t, p.Load(t.Context(), "m"))
		first := p.pid()

		// The real server executes for longer than a probe may take.
		require.NoError(t, infer(t.Context(), p.Endpoint(), "m"))
		require.Empty(t, w.seen(), "a long batch is no hang")

		require.NoError(t, syscall.Kill(first, syscall.SIGSTOP))
		w.await("down and up", func(e []Event) bool { return len(e) == 2 })
		events := w.seen()
		require.False(t, events[0].Up)
		require.Contains(t, events[0].Reason, "hangs")
		require.True(t, events[1].Up)
		require.Empty(t, events[1].Missing)
		require.NotEqual(t, first, p.pid())
		ready, err := p.current.(*processServer).client.ModelReady(t.Context(), &tritonpb.ModelReadyRequest{Name: "m"})
		require.NoError(t, err)
		require.True(t, ready.GetReady())
		require.NoError(t, p.Stop(t.Context()))
	})
}
