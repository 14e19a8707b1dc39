// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	dir, h := conformanceModels(t, "slow", "string"), &holds{t: t, dir: t.TempDir()}
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
	// Triton's exporter drops what a collector does not take within its time, as on a busy machine. Then the client asks again, in other traces.
	traced := func(what string, once func(trace func(n int) string) (execution collector.Span)) {
		t.Helper()
		const attempts = 4
		for attempt := 1; ; attempt++ {
			execution := once(func(n int) string { return fmt.Sprintf("%032x", attempt<<8+n) })
			deadline := time.Now().Add(15 * time.Second)
			for time.Now().Before(deadline) {
				if slices.ContainsFunc(o.Spans(), func(s collector.Span) bool {
					return s.Service != "conch" && s.Parent == execution.ID && s.Trace == execution.Trace
				}) {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
			require.Less(t, attempt, attempts, "Triton's spans come, below the execution of what was %s: %v", what, o.Spans())
			t.Logf("Triton's span of trace %s, %s, did not come; the client asks again", execution.Trace, what)
		}
	}
	traced("queued", func(trace func(n int) string) (shared collector.Span) {
		first, second, third := trace(1), trace(2), trace(3)
		taken, release := h.hold()
		ask("first", first)
		taken()
		for n, trace := range []string{second, third} {
			ask(trace[len(trace)-1:], trace)
			require.Eventually(t, func() bool { m, err := a.Model(t.Context(), "slow"); return err == nil && m.Queued == n+1 }, 30*time.Second, 5*time.Millisecond)
		}
		release()
		for range 3 {
			require.NoError(t, <-answered)
		}
		require.Eventually(t, func() bool {
			all := o.Named("conch.execution")
			i := slices.IndexFunc(all, func(s collector.Span) bool { return len(s.Links) == 2 && s.Trace == second })
			if i >= 0 {
				shared = all[i]
			}
			return i >= 0
		}, time.Minute, 50*time.Millisecond, "conch's spans come")
		require.Equal(t, []string{second, third}, []string{shared.Links[0].Trace, shared.Links[1].Trace})
		require.Equal(t, "2", shared.Attributes["conch.rows"])
		return shared
	})

	// What is proxied over HTTP goes the same way.
	traced("proxied", func(trace func(n int) string) (execution collector.Span) {
		fourth := trace(4)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.HTTP+"/v2/models/string/generate", strings.NewReader(`{"INPUT0":"ab"}`))
		require.NoError(t, err)
		r.Header.Set("Traceparent", "00-"+fourth+"-00f067aa0ba902b7-01")
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Eventually(t, func() bool {
			all := o.Named("conch.execution")
			i := slices.IndexFunc(all, func(s collector.Span) bool { return s.Trace == fourth })
			if i >= 0 {
				execution = all[i]
			}
			return i >= 0
		}, time.Minute, 50*time.Millisecond, "conch's spans come")
		return execution
	})
}
