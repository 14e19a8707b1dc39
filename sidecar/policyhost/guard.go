// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"fmt"
	"time"
)

// RetryError says that a call was not made because it is too early. It is
// [ErrBackoff] or [ErrBreakerOpen], and the failure that it waits for.
type RetryError struct {
	// Why is ErrBackoff or ErrBreakerOpen.
	Why error
	// At is when a call will be made again.
	At time.Time
	// Last is the last failure.
	Last error
}

// Error names the time and the last failure.
func (e *RetryError) Error() string {
	return fmt.Sprintf("%v until %s; last failure: %v", e.Why, e.At.Format(time.RFC3339), e.Last)
}

// Unwrap returns both errors.
func (e *RetryError) Unwrap() []error { return []error{e.Why, e.Last} }

// guard decides whether the policy may be called: it is the delay before a dead
// process is started again and the circuit breaker in one, on a clock that it
// is handed.
type guard struct {
	backoffMin, backoffMax time.Duration
	threshold              int
	open, openMax          time.Duration

	state Breaker
	// failures in a row; trips are the times in a row that the breaker opened.
	failures, trips int
	retryAt         time.Time
	last            error
}

func newGuard(o Options) *guard {
	return &guard{
		backoffMin: o.BackoffMin, backoffMax: o.BackoffMax,
		threshold: o.BreakerFailures, open: o.BreakerOpen, openMax: o.BreakerOpenMax,
		state: BreakerClosed,
	}
}

// admit returns nil where a call may be made. An open breaker whose time is
// over becomes half open, which halfOpened reports.
func (g *guard) admit(now time.Time) (halfOpened bool, err error) {
	if now.Before(g.retryAt) {
		why := ErrBackoff
		if g.state == BreakerOpen {
			why = ErrBreakerOpen
		}
		return false, &RetryError{Why: why, At: g.retryAt, Last: g.last}
	}
	if g.state == BreakerOpen {
		g.state = BreakerHalfOpen
		return true, nil
	}
	return false, nil
}

// fail counts a failure; died says that the process has to be started again
// before the next call, which is then delayed. It reports whether the breaker
// opened.
func (g *guard) fail(now time.Time, err error, died bool) (opened bool) {
	g.failures++
	g.last = err
	if g.state == BreakerHalfOpen || g.failures >= g.threshold {
		opened = g.state != BreakerOpen
		g.state = BreakerOpen
		g.retryAt = now.Add(doubled(g.open, g.trips, g.openMax))
		g.trips++
		return opened
	}
	if died {
		g.retryAt = now.Add(doubled(g.backoffMin, g.failures-1, g.backoffMax))
	}
	return false
}

// succeed forgets the failures and reports whether the breaker closed.
func (g *guard) succeed() (closed bool) {
	closed = g.state != BreakerClosed
	g.state, g.failures, g.trips, g.retryAt, g.last = BreakerClosed, 0, 0, time.Time{}, nil
	return closed
}

// doubled is d * 2^times, at most limit.
func doubled(d time.Duration, times int, limit time.Duration) time.Duration {
	for ; times > 0 && d < limit; times-- {
		d *= 2
	}
	return min(d, limit)
}
