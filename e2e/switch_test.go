// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// onBoth runs a test on minitriton and on the real tritonserver, each under shims as a process of its own, some times over each.
func onBoth(t *testing.T, variable string, mini, tritonserver int, test func(t *testing.T, server string, times int)) {
	t.Run("minitriton", func(t *testing.T) {
		t.Parallel()
		self, err := os.Executable()
		require.NoError(t, err)
		test(t, self, rounds(t, variable, mini))
	})
	t.Run("tritonserver", func(t *testing.T) {
		t.Parallel()
		test(t, setting(t, "CONCH_TRITONSERVER"), rounds(t, variable+"_REAL", tritonserver))
	})
}

// Plans that move, resize, add and remove, and files that change, while requests flow: every accepted request is answered.
func TestPlanChangesLoseNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, "CONCH_CHANGES", 30, 4, func(t *testing.T, server string, changes int) {
		random := rand.New(rand.NewPCG(11, uint64(changes)))
		models := small(2)
		repository := t.TempDir()
		require.NoError(t, models.Write(repository))
		present := randomLayout(random, 2, models.Names())
		c := serve(t, rig.ConchOptions{
			Repository: repository, Await: []string{"small-0"}, GPUs: 2, Server: server, Settings: layoutSettings(t, present),
		})
		a := admin(t, c)
		wanted := &served{models: models.Names()}
		wanted.byAll(present)
		load := ask(t, c.GRPC, 4, wanted.names)
		quiet := watchQuiet(t)
		times := newSwitches(load)
		for range changes {
			times.calm(t)
			next := randomLayout(random, 2, models.Names())
			wanted.byAll(present, next)
			if random.IntN(4) == 0 {
				otherFiles(t, repository, "small-0", 4+random.IntN(5))
				_, err := a.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
				require.NoError(t, err)
			}
			times.during(t, func() {
				r, err := order(t, a, next)
				require.NoError(t, err)
				require.Equal(t, next.String(), layoutOf(t, r.Plan).String())
				requireReady(t, a)
			})
			present = next
			wanted.byAll(present)
			load.requireNoneLost(t)
		}
		load.close(t)
		times.report(t, quiet(), server != setting(t, "CONCH_TRITONSERVER"))
	})
}

// Policies that replace each other while requests flow.
func TestPolicySwapsLoseNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, "CONCH_SWAPS", 30, 4, func(t *testing.T, server string, swaps int) {
		l, err := parseLayout("gpu0.0:50=small-0 gpu0.1:50=small-0")
		require.NoError(t, err)
		models := small(1)
		c := serve(t, rig.ConchOptions{Models: models, GPUs: 1, Server: server, Settings: layoutSettings(t, l)})
		a := admin(t, c)
		load := ask(t, c.GRPC, 4, models.Names)
		quiet := watchQuiet(t)
		times := newSwitches(load)
		for i := range swaps {
			times.calm(t)
			times.during(t, func() {
				policy := api.UsePolicyRequest{Name: "static", Parameters: map[string]string{"partitions": "* = 50, 50", "discipline": "adaptive"}}
				if i%2 == 1 {
					policy = api.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"layout": l.String()}}
				}
				_, err := a.UsePolicy(t.Context(), policy)
				require.NoError(t, err)
				r, err := a.Apply(t.Context(), api.ApplyRequest{})
				require.NoError(t, err)
				require.Equal(t, policy.Name, r.Plan.Policy)
				require.Equal(t, l.String(), layoutOf(t, r.Plan).String())
			})
			load.requireNoneLost(t)
		}
		load.close(t)
		times.report(t, quiet(), true)
	})
}

// otherFiles changes a model's files: its largest batch.
func otherFiles(t *testing.T, repository, model string, maxBatch int) {
	t.Helper()
	path := filepath.Join(repository, model, "config.pbtxt")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	changed := regexp.MustCompile(`max_batch_size: *\d+`).ReplaceAll(text, []byte("max_batch_size: "+strconv.Itoa(maxBatch)))
	require.NoError(t, os.WriteFile(path, changed, 0o644))
}

// requireReady waits until every partition serves as the plan asks.
func requireReady(t *testing.T, a *client.Client) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		for _, p := range partitions(t, a) {
			ready, _ := api.ConditionOf(p.Conditions, api.ConditionReady)
			assert.True(collect, ready.Holds, "%s: %s", p.ID, ready.Message)
		}
	}, 2*time.Minute, 5*time.Millisecond)
}

// switches compares how long requests take during switches with how long they take between them.
type switches struct {
	load         *steady
	between, mid []time.Duration
	took         []time.Duration
}

func newSwitches(load *steady) *switches { return &switches{load: load} }

// calmAnswers are awaited between switches.
const calmAnswers = 60

func (s *switches) calm(t *testing.T) {
	t.Helper()
	s.load.taken()
	from := s.load.answered.Load()
	require.Eventually(t, func() bool { return s.load.answered.Load() >= from+calmAnswers || s.load.anyLost() }, time.Minute, time.Millisecond)
	s.between = append(s.between, s.load.taken()...)
}

func (s *switches) during(t *testing.T, do func()) {
	t.Helper()
	began := time.Now()
	do()
	s.took = append(s.took, time.Since(began))
	s.mid = append(s.mid, s.load.taken()...)
}

// p99 of durations, which it sorts.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// slower is how much p99 may grow during switches.
const slower = 1.2

// switchesOfARun are as many as `make faults` does, and a run beside other tests does not.
const switchesOfARun = 100

// report prints the times. They are bounded where they mean something: in a run of its own, which has many switches, on a quiet machine. Beside
// other tests a switch, which starts processes, pays for what they take of the processors.
func (s *switches) report(t *testing.T, quiet, bounded bool) {
	t.Helper()
	before, during := p99(s.between), p99(s.mid)
	slices.Sort(s.took)
	t.Logf("%d switches of %v (median) to %v; p99 of %d answers between them %v, of %d during them %v, ratio %.2f",
		len(s.took), s.took[len(s.took)/2].Round(time.Millisecond), s.took[len(s.took)-1].Round(time.Millisecond),
		len(s.between), before.Round(10*time.Microsecond), len(s.mid), during.Round(10*time.Microsecond), float64(during)/float64(before))
	if quiet && bounded && len(s.took) >= switchesOfARun {
		require.LessOrEqual(t, float64(during), slower*float64(before))
	}
}
