// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// attempt is one run of a case. It is a testing.TB that takes note of failures and passes none on, because a failure may be a listed
// difference, and a test that has failed cannot be mended.
type attempt struct {
	testing.TB // the target's test, for the methods that are not below
	ctx        context.Context
	took       time.Duration

	mu              sync.Mutex
	failed, skipped bool
	output          strings.Builder
	cleanups        []func()
}

func newAttempt(t *testing.T) *attempt { return &attempt{TB: t} }

// run runs a case to its end, and then its cleanups.
func (a *attempt) run(f func()) {
	ctx, cancel := context.WithCancel(a.TB.Context())
	a.ctx = ctx
	start := time.Now()
	apart(f)
	cancel() // before the cleanups, as in package testing
	for _, c := range slices.Backward(a.cleanups) {
		apart(c)
	}
	a.took = time.Since(start)
}

// apart runs f to its end in a goroutine of its own, because FailNow ends the goroutine.
func apart(f func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	<-ended
}

// Context ends with the case.
func (a *attempt) Context() context.Context { return a.ctx }

// Cleanup runs f when the case has ended.
func (a *attempt) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, f)
}

// Helper does nothing: failures carry a trace.
func (a *attempt) Helper() {}

func (a *attempt) note(line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.output.WriteString(strings.TrimRight(line, "\n") + "\n")
}

// Log adds to what is shown if the case fails.
func (a *attempt) Log(args ...any) { a.note(fmt.Sprintln(args...)) }

// Logf is Log with a format.
func (a *attempt) Logf(format string, args ...any) { a.note(fmt.Sprintf(format, args...)) }

// Fail marks the case as failed.
func (a *attempt) Fail() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = true
}

// Failed reports whether the case has failed.
func (a *attempt) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// FailNow fails the case and ends it.
func (a *attempt) FailNow() {
	a.Fail()
	runtime.Goexit()
}

// Error is Log and Fail.
func (a *attempt) Error(args ...any) {
	a.Log(args...)
	a.Fail()
}

// Errorf is Logf and Fail.
func (a *attempt) Errorf(format string, args ...any) {
	a.Logf(format, args...)
	a.Fail()
}

// Fatal is Log and FailNow.
func (a *attempt) Fatal(args ...any) {
	a.Log(args...)
	a.FailNow()
}

// Fatalf is Logf and FailNow.
func (a *attempt) Fatalf(format string, args ...any) {
	a.Logf(format, args...)
	a.FailNow()
}

// SkipNow ends the case: it does not apply to the target.
func (a *attempt) SkipNow() {
	a.mu.Lock()
	a.skipped = true
	a.mu.Unlock()
	runtime.Goexit()
}

// Skip is Log and SkipNow.
func (a *attempt) Skip(args ...any) {
	a.Log(args...)
	a.SkipNow()
}

// Skipf is Logf and SkipNow.
func (a *attempt) Skipf(format string, args ...any) {
	a.Logf(format, args...)
	a.SkipNow()
}

// Skipped reports whether the case does not apply.
func (a *attempt) Skipped() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.skipped
}

// until waits for a condition, as long as for a call. It calls holds in the goroutine of the case itself:
// holds may fail the case, and is not called once that has ended.
func (e *Env) until(holds func() bool, every time.Duration, what ...any) {
	e.Helper()
	for end := time.Now().Add(callTimeout); !holds(); time.Sleep(every) {
		if time.Now().After(end) {
			require.FailNow(e, fmt.Sprintf("not so within %v", callTimeout), what...)
		}
	}
}
