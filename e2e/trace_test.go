// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/internal/collector"
	"github.com/conch-serving/conch/internal/rig"
)

// A collector gets the spans of conch and of a real Triton that traces by OpenTelemetry: the client's trace goes through conch's queue, through an
// execution that another request shares, and on into the server.
func TestATraceGoesFromTheClientIntoTriton(t *testing.T) {
	t.Parallel()
	o, err := collector.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	dir, h := conformanceModels(t, "slow"), &holds{t: t, dir: t.TempDir()}
	write(t, dir, "slow/1/model.py", holding(h))
	c := serve(t, rig.ConchOptions{Repository: dir, GPUs: 1, Settings: map[string]any{
		"tracing": map[string]any{"endpoint": o.GRPC},
		"driver": map[string]any{"kind": "process", "tritonserver": setting(t, "CONCH_TRITONSERVER"), "arguments": []string{
			"--trace-config", "mode=opentelemetry", "--trace-config", "level=TIMESTAMPS", "--trace-config", "rate=1",
			"--trace-config", "opentelemetry,url=http://" + o.HTTP + "/v1/traces", "--trace-config", "opentelemetry,bsp_schedule_delay=50",
		}},
	}})
	a, client := admin(t, c), triton(t, c)
	answered := make(chan error, 3)
	ask := func(id, trace string) {
		go func() {
			_, err := client.ModelInfer(metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-00f067aa0ba902b7-01"), slowRequest(id, 1))
			answered <- err
		}()
	}
	const first, second, third = "10000000000000000000000000000001", "20000000000000000000000000000002", "30000000000000000000000000000003"
	taken, release := h.hold()
	ask("first", first)
	taken()
	for n, trace := range []string{second, third} {
		ask(trace[:1], trace)
		require.Eventually(t, func() bool { m, err := a.Model(t.Context(), "slow"); return err == nil && m.Queued == n+1 }, 30*time.Second, 5*time.Millisecond)
	}
	release()
	for range 3 {
		require.NoError(t, <-answered)
	}

	var shared collector.Span
	require.Eventually(t, func() bool {
		all := o.Named("conch.execution")
		i := slices.IndexFunc(all, func(s collector.Span) bool { return len(s.Links) == 2 })
		if i >= 0 {
			shared = all[i]
		}
		return i >= 0
	}, time.Minute, 50*time.Millisecond, "conch's spans come")
	require.Equal(t, second, shared.Trace)
	require.Equal(t, []string{second, third}, []string{shared.Links[0].Trace, shared.Links[1].Trace})
	require.Equal(t, "2", shared.Attributes["conch.rows"])
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(o.Spans(), func(s collector.Span) bool { return s.Service != "conch" && s.Parent == shared.ID && s.Trace == second })
	}, time.Minute, 50*time.Millisecond, "Triton's spans come, below the execution: %v", o.Spans())
}
