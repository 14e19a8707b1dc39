// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// clock is set by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a host with what it reports.
type world struct {
	*policyhost.Host
	clock *clock
	mu    sync.Mutex
	kinds []policyhost.EventKind
	log   strings.Builder
}

func newWorld(t *testing.T, change func(*policyhost.Options)) *world {
	t.Helper()
	w := &world{clock: &clock{now: time.Unix(1_000_000, 0)}}
	o := policyhost.Options{
		Now:    w.clock.Now,
		Logger: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnEvent: func(e policyhost.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.kinds = append(w.kinds, e.Kind)
		},
		StartTimeout: time.Minute,
		Budget:       30 * time.Second,
		Grace:        50 * time.Millisecond,
		BackoffMin:   time.Second, BackoffMax: 3 * time.Second,
		BreakerFailures: 4, BreakerOpen: time.Minute, BreakerOpenMax: 90 * time.Second,
	}
	if change != nil {
		change(&o)
	}
	w.Host = policyhost.New(o)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// Write implements io.Writer for the log.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// events since the last time.
func (w *world) events() []policyhost.EventKind {
	w.mu.Lock()
	defer w.mu.Unlock()
	kinds := w.kinds
	w.kinds = nil
	return kinds
}

func mode(t *testing.T, mode string, env ...string) policyhost.Ref {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return policyhost.Ref{Name: mode, Executable: &policyhost.Executable{
		// The race detector lets every process sleep a second at its end.
		Path: self, Env: append([]string{modeVariable + "=" + mode, "GORACE=atexit_sleep_ms=0"}, env...),
	}}
}

func snapshot(revision uint64, budget time.Duration) *policy.Snapshot {
	return &policy.Snapshot{
		Revision: revision, PlanningBudgetUs: budget.Microseconds(),
		Models: []*policy.Model{{Name: "resnet50"}},
	}
}

func TestGoodPolicy(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Plan(t.Context(), snapshot(1, 0))
	require.ErrorIs(t, err, policyhost.ErrNoPolicy)
	require.Equal(t, policyhost.StateNone, w.Status().State)

	ref := mode(t, "good")
	ref.Parameters = map[string]string{"size": "5"}
	d, err := w.Use(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, "9.8.7", d.GetVersion())

	s := snapshot(41, 7*time.Second)
	s.Parameters = map[string]string{"colour": "red", "size": "4", "unknown": "dropped"}
	p, err := w.Plan(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, uint64(41), p.GetSnapshotRevision())
	require.Equal(t, "fake", p.GetPolicy(), "the host fills in who made the plan")
	text := p.GetReasons()[0].GetText()
	require.Contains(t, text, "colour=red size=5 budget=7000000 models=1")
	require.Equal(t, map[string]string{"colour": "red", "size": "4", "unknown": "dropped"}, s.GetParameters(),
		"the snapshot is immutable")
	require.Same(t, p, w.LastGood())

	status := w.Status()
	require.Equal(t, policyhost.StateRunning, status.State)
	require.Equal(t, policyhost.BreakerClosed, status.Breaker)
	require.Equal(t, 1, status.Plans)
	require.NoError(t, syscall.Kill(status.PID, 0), "the process exists")
	require.NoError(t, w.Close())
	require.ErrorIs(t, syscall.Kill(status.PID, 0), syscall.ESRCH, "the process is gone")
	_, err = w.Plan(t.Context(), s)
	require.ErrorIs(t, err, policyhost.ErrClosed)
	_, err = w.Use(t.Context(), ref)
	require.ErrorIs(t, err, policyhost.ErrClosed)
}

func TestMinimalEnvironment(t *testing.T) {
	t.Setenv("CONCH_TEST_SECRET", "token")
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "good"))
	require.NoError(t, err)
	p, err := w.Plan(t.Context(), snapshot(1, 0))
	require.NoError(t, err)
	text := p.GetReasons()[0].GetText()
	require.Contains(t, text, "PATH")
	require.Contains(t, text, modeVariable)
	require.NotContains(t, text, "CONCH_TEST_SECRET")
}

func TestFailedStarts(t *testing.T) {
	for _, test := range []struct {
		name string
		ref  policyhost.Ref
		want error
		says string
	}{
		{"exit at start", mode(t, "exit at start"), policyhost.ErrStart, ""},
		{"silent", mode(t, "silent"), policyhost.ErrStart, ""},
		{"no handshake", mode(t, "no handshake"), policyhost.ErrStart, ""},
		{"wrong version", mode(t, "wrong version"), policyhost.ErrStart, "Plugin version: 7"},
		{"no such file", policyhost.Ref{Name: "x", Executable: &policyhost.Executable{Path: "/nonexistent/policy"}}, policyhost.ErrStart, "/nonexistent/policy"},
		{"nameless", mode(t, "nameless"), policyhost.ErrGarbage, "without a name"},
		{"needs magic", mode(t, "needs magic"), policyhost.ErrNeeds, "magic"},
		{"hang at describe", mode(t, "hang at describe"), policyhost.ErrDeadline, ""},
		{"unknown", policyhost.Ref{Name: "nosuch"}, policyhost.ErrUnknownPolicy, "calm, mine"},
		{"unknown parameter", func() policyhost.Ref {
			r := mode(t, "good")
			r.Parameters = map[string]string{"color": "red"}
			return r
		}(), policyhost.ErrParameter, "it has: colour, size"},
		{"bad parameter", func() policyhost.Ref {
			r := mode(t, "good")
			r.Parameters = map[string]string{"size": "big"}
			return r
		}(), policyhost.ErrParameter, "type int"},
		{"a parameter that only the policy can judge", func() policyhost.Ref {
			r := mode(t, "refuse")
			r.Parameters = map[string]string{"colour": "moonlight"}
			return r
		}(), policyhost.ErrParameter, "the moon is wrong"},
		{"bad pin", func() policyhost.Ref {
			r := mode(t, "good")
			r.Executable.SHA256 = "abc"
			return r
		}(), policyhost.ErrChecksum, "64 hexadecimal digits"},
		{"other file than pinned", func() policyhost.Ref {
			r := mode(t, "good")
			r.Executable.SHA256 = strings.Repeat("0", 64)
			return r
		}(), policyhost.ErrChecksum, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(o *policyhost.Options) {
				o.Policies = map[string]policyhost.Executable{"mine": {Path: "/bin/true"}}
				o.Builtins = listScript(t)
				switch test.name {
				case "hang at describe":
					o.Budget = 300 * time.Millisecond
				case "silent":
					o.StartTimeout = 300 * time.Millisecond
				}
			})
			_, err := w.Use(t.Context(), test.ref)
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.says)
			require.Equal(t, policyhost.StateNone, w.Status().State)
			require.Equal(t, []policyhost.EventKind{policyhost.EventSwapFailed}, w.events())
		})
	}
}

// listScript is a conch-policies with the one policy "calm".
func listScript(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "conch-policies")
	script := "#!/bin/sh\nif [ \"$1\" = -list ]; then echo calm; exit; fi\n" + modeVariable + "=good GORACE=atexit_sleep_ms=0 exec '" + self + "'\n"
	// A process that another test starts meanwhile would hold the file open for writing until it runs its own program, and so long nothing can run this one.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

func TestFailedCalls(t *testing.T) {
	for _, test := range []struct {
		mode string
		want error
		says string
		dies bool
	}{
		{"hang", policyhost.ErrDeadline, "nothing came within", true},
		{"freeze", policyhost.ErrDeadline, "nothing came within", true},
		{"child", policyhost.ErrDeadline, "nothing came within", true},
		{"exit", policyhost.ErrCrashed, "", true},
		{"panic", policyhost.ErrCrashed, "", true},
		{"other revision", policyhost.ErrGarbage, "answers snapshot 2, asked was 1", false},
		{"undecodable", policyhost.ErrGarbage, "UTF-8", false},
		{"huge", policyhost.ErrGarbage, "larger than max", false},
		{"refuse", policyhost.ErrRefused, "the moon is wrong", false},
		{"needs profiles", policyhost.ErrNeeds, "profiles", false},
	} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(o *policyhost.Options) { o.MaxAnswerBytes = 1 << 20 })
			_, err := w.Use(t.Context(), mode(t, test.mode))
			require.NoError(t, err)
			pid := w.Status().PID
			w.events()
			budget := 30 * time.Second
			if errors.Is(test.want, policyhost.ErrDeadline) {
				budget = 300 * time.Millisecond
			}
			_, err = w.Plan(t.Context(), snapshot(1, budget))
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.says)
			require.Nil(t, w.LastGood())
			if errors.Is(test.want, policyhost.ErrNeeds) {
				require.Empty(t, w.events(), "the policy did nothing wrong")
				return
			}
			require.Equal(t, []policyhost.EventKind{policyhost.EventCallFailed}, w.events())
			status := w.Status()
			require.Equal(t, 1, status.Failures)
			require.NotEmpty(t, status.LastError)
			if test.dies {
				require.Equal(t, policyhost.StateDown, status.State)
				require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
				_, err = w.Plan(t.Context(), snapshot(1, budget))
				require.ErrorIs(t, err, policyhost.ErrBackoff)
				require.ErrorIs(t, err, test.want, "the reason is told along")
			} else {
				require.Equal(t, policyhost.StateRunning, status.State)
				require.Equal(t, pid, status.PID)
			}
			if test.mode == "panic" {
				require.Eventually(t, func() bool { return strings.Contains(w.logged(), "the policy lost its mind") }, 30*time.Second, time.Millisecond)
			}
		})
	}
}

// A policy that hangs or dies over its parameters is put in use: that is judged,
// and reported, as every call is.
func TestTryingParametersIsNoPlan(t *testing.T) {
	for _, bad := range []string{"good", "hang", "exit"} {
		t.Run(bad, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(o *policyhost.Options) {
				if bad == "hang" {
					o.Budget = 3 * time.Second // it has to describe itself in it, too
				}
			})
			ref := mode(t, bad)
			ref.Parameters = map[string]string{"colour": "red"}
			_, err := w.Use(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, []policyhost.EventKind{policyhost.EventStarted}, w.events())
			require.Nil(t, w.LastGood())
			require.Zero(t, w.Status().Failures)
		})
	}
}

func TestSlowButInTime(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "slow"))
	require.NoError(t, err)
	_, err = w.Plan(t.Context(), snapshot(1, 30*time.Second))
	require.NoError(t, err)
}

func TestCallersEndIsNoFailure(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "hang"))
	require.NoError(t, err)
	w.events()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = w.Plan(ctx, snapshot(1, time.Minute))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Zero(t, w.Status().Failures)
	require.Empty(t, w.events())
}

func TestBackoffBreakerAndRecovery(t *testing.T) {
	w := newWorld(t, nil)
	file := filepath.Join(t.TempDir(), "well")
	_, err := w.Use(t.Context(), mode(t, "until told", fileVariable+"="+file))
	require.NoError(t, err)
	w.events()
	plan := func() error {
		_, err := w.Plan(t.Context(), snapshot(1, 30*time.Second))
		return err
	}
	refusedUntil := func(d time.Duration, why error) {
		t.Helper()
		w.clock.advance(d - time.Millisecond)
		err := plan()
		require.ErrorIs(t, err, why)
		var retry *policyhost.RetryError
		require.ErrorAs(t, err, &retry)
		require.Equal(t, w.clock.Now().Add(time.Millisecond), retry.At)
		w.clock.advance(time.Millisecond)
	}

	require.ErrorIs(t, plan(), policyhost.ErrCrashed)
	require.Equal(t, []policyhost.EventKind{policyhost.EventCallFailed}, w.events())
	// The delay doubles from 1 s to its bound of 3 s.
	for _, delay := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		refusedUntil(delay, policyhost.ErrBackoff)
		require.ErrorIs(t, plan(), policyhost.ErrCrashed)
	}
	// The fourth failure opened the breaker.
	require.Equal(t, []policyhost.EventKind{
		policyhost.EventStarted, policyhost.EventCallFailed,
		policyhost.EventStarted, policyhost.EventCallFailed,
		policyhost.EventStarted, policyhost.EventCallFailed, policyhost.EventBreakerOpened,
	}, w.events())
	require.Equal(t, policyhost.BreakerOpen, w.Status().Breaker)
	refusedUntil(time.Minute, policyhost.ErrBreakerOpen)
	// One trial, which fails: open again, for longer.
	require.ErrorIs(t, plan(), policyhost.ErrCrashed)
	require.Equal(t, []policyhost.EventKind{
		policyhost.EventBreakerHalfOpen, policyhost.EventStarted, policyhost.EventCallFailed, policyhost.EventBreakerOpened,
	}, w.events())
	refusedUntil(90*time.Second, policyhost.ErrBreakerOpen)

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, plan())
	require.Equal(t, []policyhost.EventKind{
		policyhost.EventBreakerHalfOpen, policyhost.EventStarted, policyhost.EventBreakerClosed,
	}, w.events())
	status := w.Status()
	require.Equal(t, policyhost.BreakerClosed, status.Breaker)
	require.Zero(t, status.Failures)
	require.Equal(t, 5, status.Restarts)
	require.Empty(t, status.LastError)
}

func TestDeathBetweenCallsIsRepairedAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "good"))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(w.Status().PID, syscall.SIGKILL))
	require.Eventually(t, func() bool { return w.Status().State == policyhost.StateDown }, 30*time.Second, time.Millisecond)
	_, err = w.Plan(t.Context(), snapshot(1, 30*time.Second))
	require.NoError(t, err)
	require.Equal(t, 1, w.Status().Restarts)
}

func TestCheckRejects(t *testing.T) {
	wrong := errors.New("two models on one chair")
	reject := false
	w := newWorld(t, func(o *policyhost.Options) {
		o.Check = func(s *policy.Snapshot, p *policy.Plan) error {
			if reject {
				return wrong
			}
			return nil
		}
	})
	_, err := w.Use(t.Context(), mode(t, "good"))
	require.NoError(t, err)
	good, err := w.Plan(t.Context(), snapshot(1, 0))
	require.NoError(t, err)
	reject = true
	_, err = w.Plan(t.Context(), snapshot(2, 0))
	require.ErrorIs(t, err, policyhost.ErrRejected)
	require.ErrorIs(t, err, wrong)
	require.Same(t, good, w.LastGood(), "the last good plan is kept")
	require.Equal(t, policyhost.StateRunning, w.Status().State)
}

func TestSwap(t *testing.T) {
	w := newWorld(t, func(o *policyhost.Options) { o.Builtins = listScript(t) })
	_, err := w.Use(t.Context(), mode(t, "slow"))
	require.NoError(t, err)
	old := w.Status().PID
	first, err := w.Plan(t.Context(), snapshot(1, 30*time.Second))
	require.NoError(t, err)

	_, err = w.Use(t.Context(), mode(t, "exit at start"))
	require.ErrorIs(t, err, policyhost.ErrStart)
	require.Equal(t, old, w.Status().PID, "a failed swap keeps the old one")
	require.Equal(t, "slow", w.Status().Name)

	// Plans go on while the policy is swapped; none fails.
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for i := range 3 {
				_, err := w.Plan(t.Context(), snapshot(uint64(i), 30*time.Second))
				if err != nil {
					t.Errorf("a plan failed during the swap: %v", err)
				}
			}
		})
	}
	_, err = w.Use(t.Context(), policyhost.Ref{Name: "calm"})
	require.NoError(t, err)
	wg.Wait()
	require.NotSame(t, first, w.LastGood())
	require.Equal(t, "calm", w.Status().Name)
	require.ErrorIs(t, syscall.Kill(old, 0), syscall.ESRCH, "the old process is gone")

	known, err := w.List(t.Context())
	require.NoError(t, err)
	require.Len(t, known, 1)
	require.True(t, known[0].InUse && known[0].Builtin && known[0].Name == "calm", "%+v", known)
}

func TestDescribe(t *testing.T) {
	w := newWorld(t, nil)
	d, err := w.Describe(t.Context(), mode(t, "good"))
	require.NoError(t, err)
	require.Equal(t, "good", d.GetSummary())
	require.Equal(t, policyhost.StateNone, w.Status().State, "to describe is not to use")
	_, err = w.Use(t.Context(), mode(t, "slow"))
	require.NoError(t, err)
	d, err = w.Describe(t.Context(), policyhost.Ref{Name: "slow"})
	require.NoError(t, err)
	require.Equal(t, "slow", d.GetSummary())
}

func TestOutputIsLogged(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "chatty"))
	require.NoError(t, err)
	_, err = w.Plan(t.Context(), snapshot(1, 30*time.Second))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(w.logged(), "printed by the policy") }, 30*time.Second, time.Millisecond)
}
