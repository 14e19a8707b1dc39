// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton"
)

// Verdict is the outcome of a case on a target.
type Verdict string

// The verdicts.
const (
	Pass    Verdict = "pass"       // as Triton answers
	Differs Verdict = "difference" // otherwise, and it is listed
	Free    Verdict = "free"       // the outcome is the target's own affair
	Skipped Verdict = "skipped"    // the case does not apply to the target
	Fail    Verdict = "fail"       // otherwise, and it is not listed; or listed and none
)

// atOnce is how many cases that share a target run at the same time.
const atOnce = 8

// crashesAllowed is how many ends of a target's server the suite goes on after: a tritonserver crashes now and then while it unloads a model.
const crashesAllowed = 2

// Run loads the suite's models on the target unless they are, runs every case, reports each as a subtest, and returns the verdicts by case.
// Cases that failed as the target's server ended run again on another server.
func Run(t *testing.T, target Target) map[string]Verdict {
	r := &runner{t: t}
	defer r.close()
	r.use(target)
	verdicts := map[string]Verdict{}
	report := func(c Case, a *attempt) {
		verdicts[c.Name] = Fail // unless judged otherwise: a test that fails ends without returning
		t.Run(c.Name, func(t *testing.T) { verdicts[c.Name] = judge(t, a, find(target.Differences, c.Name)) })
	}
	shared := sharedCases()
	for i, a := range r.run(shared, atOnce) {
		report(shared[i], a)
	}
	for _, c := range aloneCases() {
		report(c, r.run([]Case{c}, 1)[0])
	}
	return verdicts
}

// runner runs cases on a target.
type runner struct {
	t       *testing.T
	target  Target
	client  *triton.Client
	caller  *http.Client
	crashes int
}

// use connects to a target and loads the suite's models.
func (r *runner) use(target Target) {
	r.close()
	client, err := triton.Dial(target.GRPC)
	require.NoError(r.t, err)
	if target.Load == nil {
		target.Load = client.Load
	}
	if target.Unload == nil {
		target.Unload = client.Unload
	}
	// A connection per call: a real server sends a body after HEAD, which spoils the connection for the next call.
	r.target, r.client, r.caller = target, client, &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}, Timeout: callTimeout}
	if !target.Loaded {
		loadAll(r.t, target)
	}
}

func (r *runner) close() {
	if r.client != nil {
		require.NoError(r.t, r.client.Close())
		r.client = nil
	}
}

// run runs cases, atOnce of them at the same time, and returns the outcome of each.
func (r *runner) run(cases []Case, atOnce int) []*attempt {
	for {
		attempts := together(cases, atOnce, func(c Case) *attempt {
			a := newAttempt(r.t)
			a.run(func() { c.Run(&Env{TB: a, Target: r.target, Client: r.client, http: r.caller}) })
			return a
		})
		failed := slices.IndexFunc(attempts, func(a *attempt) bool { return a.failed })
		if failed < 0 || r.target.Again == nil || r.crashes == crashesAllowed {
			return attempts
		}
		another, ended := r.target.Again()
		if !ended {
			return attempts
		}
		another.Name, another.Gates, another.Differences = r.target.Name, r.target.Gates, r.target.Differences
		r.crashes++
		r.t.Logf("the server itself ended in %q, which runs again on another:\n%s", cases[failed].Name, attempts[failed].output.String())
		r.use(another)
	}
}

// loadsAtOnce bounds the python processes that a real server starts at the same time: it crashes on one that does not come up in time.
const loadsAtOnce = 3

// loadAll loads every model of the suite.
func loadAll(t *testing.T, target Target) {
	names, err := ModelNames()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	errs := make([]error, len(names))
	places := make(chan struct{}, loadsAtOnce)
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			errs[i] = target.Load(ctx, name)
		})
	}
	all.Wait()
	for i, name := range names {
		require.NoError(t, errs[i], "%s: load %s", target.Name, name)
	}
}

// together runs cases, atOnce of them at the same time.
func together(cases []Case, atOnce int, run func(Case) *attempt) []*attempt {
	attempts := make([]*attempt, len(cases))
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, c := range cases {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			attempts[i] = run(c)
		})
	}
	all.Wait()
	return attempts
}

// judge reports an attempt as the test that it is.
func judge(t *testing.T, a *attempt, listed *Difference) Verdict {
	t.Helper()
	t.Logf("took %v", a.took.Round(time.Millisecond))
	switch {
	case a.skipped:
		t.Log(a.output.String())
		return Skipped
	case listed != nil && listed.Free:
		t.Logf("either way is right: %s\n%s", listed.Reason, a.output.String())
		return Free
	case listed != nil && !a.failed:
		t.Errorf("passes, but is listed as a difference (%s): take it off the list", listed.Reason)
	case listed != nil && !listed.shownBy(a.output.String()):
		t.Errorf("is listed as a difference, but fails otherwise than listed: want a failure that says %q, have\n%s", listed.Shows, a.output.String())
	case listed != nil:
		t.Logf("differs as listed: %s", listed.Reason)
		return Differs
	case a.failed:
		t.Error(a.output.String())
	default:
		return Pass
	}
	return Fail
}
