// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
)

// reconfigure changes conch.yaml and has conch read it again.
func reconfigure(t *testing.T, c *rig.Conch, change func(settings map[string]any)) {
	t.Helper()
	data, err := os.ReadFile(c.Config)
	require.NoError(t, err)
	var settings map[string]any
	require.NoError(t, yaml.Unmarshal(data, &settings))
	change(settings)
	data, err = yaml.Marshal(settings)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(c.Config, data, 0o600))
	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGHUP))
}

// advise makes conch apply plans by order only, from now on.
func advise(t *testing.T, c *rig.Conch) {
	t.Helper()
	reconfigure(t, c, func(settings map[string]any) { settings["mode"] = "advise" })
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		v, err := admin(t, c).Version(t.Context())
		assert.NoError(collect, err)
		assert.Equal(collect, "advise", v.Mode)
	}, 30*time.Second, 20*time.Millisecond)
}

// An operator divides the GPU into other partitions under load: every server is replaced, the new ones serve before the old ones end, and no
// request fails.
func TestPlanApplyUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil, "emulated")
	a := admin(t, c)
	advise(t, c)
	run := func(arguments ...string) string {
		t.Helper()
		out, code := tritonctl(t, c, arguments...)
		require.Zero(t, code, out)
		return out
	}
	for _, cut := range []struct {
		name, shares string
		partitions   []string
	}{
		{"in halves, eager", "gpu0 = 50, 50", []string{"gpu0.0", "gpu0.1"}},
		{"whole again", "", []string{"gpu0"}},
	} {
		t.Run(cut.name, func(t *testing.T) {
			before := scrape(t, c)
			serving, err := a.Plan(t.Context())
			require.NoError(t, err)
			result := underLoad(t, c, 25, func() {
				run("policy", "use", "static", "--set", "partitions="+cut.shares, "--set", "discipline=eager")
				now, err := a.Plan(t.Context())
				require.NoError(t, err)
				require.Equal(t, serving.Revision, now.Revision, "advice is not applied")
				out, code := tritonctl(t, c, "plan", "diff", "--exit-code")
				require.Equal(t, 1, code, out)
				for _, id := range cut.partitions {
					require.Contains(t, out, "+ "+id+": ")
				}
				require.Contains(t, run("plan", "apply", "--yes", "--reason", cut.name), "serves, after")
				require.EventuallyWithT(t, func(collect *assert.CollectT) {
					now := scrape(t, c)
					for _, id := range cut.partitions {
						assert.Positive(collect, now.sum("conch_execution_duration_seconds", "partition="+id)-before.sum("conch_execution_duration_seconds", "partition="+id), "%s serves", id)
					}
				}, time.Minute, 100*time.Millisecond)
			})
			requireAllAnswered(t, result)
			var ids []string
			for _, p := range partitions(t, a) {
				require.True(t, p.Up, p.Reason)
				ids = append(ids, p.ID)
			}
			require.ElementsMatch(t, cut.partitions, ids)
			require.Contains(t, run("plan", "diff", "--exit-code"), "no difference")
			require.Contains(t, run("model", "get", "emulated"), "eager")
			require.Contains(t, run("events"), cut.name)

			after := scrape(t, c)
			require.Zero(t, after.sum("conch_apply_step_failures_total"))
			require.Zero(t, after.sum("conch_retried_requests_total", "model=emulated"), "old servers ended when they were idle")
			// The old servers end with the plan that had them.
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				servers := 0
				for _, p := range processesOf(t, c) {
					if p.parent == c.Pid() && strings.Contains(p.command, "\x00shim\x00") {
						servers++
					}
				}
				assert.Equal(collect, len(cut.partitions), servers)
			}, 30*time.Second, 50*time.Millisecond)
		})
	}
}

// A conch.yaml under which a model that serves would have no place, and one that is not valid, are refused whole: the model serves on, and
// the event log says why.
func TestAReloadThatIsWrongTakesNothingAway(t *testing.T) {
	t.Parallel()
	c := start(t, 1, nil, "emulated")
	refused := func(why string) {
		t.Helper()
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			out, code := tritonctl(t, c, "events", "--kind", "reload_refused")
			assert.Zero(collect, code)
			assert.Contains(collect, out, why)
		}, 30*time.Second, 50*time.Millisecond)
		m, err := admin(t, c).Model(t.Context(), "emulated")
		require.NoError(t, err)
		require.Equal(t, []string{"gpu0"}, m.Partitions)
		_, err = triton(t, c).ModelInfer(t.Context(), tensor("emulated", 1))
		require.NoError(t, err)
	}
	before, err := os.ReadFile(c.Config)
	require.NoError(t, err)
	reconfigure(t, c, func(settings map[string]any) {
		settings["policy"] = map[string]any{"name": "static", "parameters": map[string]any{"placement": map[string]any{"emulated": "gpu9"}}}
	})
	refused("emulated, which serves, would have no place: emulated: 0/1 partitions: 1 unavailable; parameter placement names gpu9, which is no GPU or partition here; there are gpu0")
	require.NoError(t, os.WriteFile(c.Config, before, 0o600))
	reconfigure(t, c, func(settings map[string]any) { settings["interval"] = "-1s" })
	refused("interval: -1s is not longer than zero")
}
