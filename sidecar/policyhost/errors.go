// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import "errors"

// What a call can fail with; test with errors.Is.
var (
	// ErrUnknownPolicy: no policy has that name.
	ErrUnknownPolicy = errors.New("unknown policy")
	// ErrNoPolicy: Use was never called with success.
	ErrNoPolicy = errors.New("no policy is in use")
	// ErrChecksum: the executable is not the pinned one.
	ErrChecksum = errors.New("the executable differs from its pinned checksum")
	// ErrStart: the process did not start, or did not shake hands.
	ErrStart = errors.New("the policy's process did not start")
	// ErrDeadline: no answer within the budget and its grace; the process was
	// killed.
	ErrDeadline = errors.New("the policy did not answer in time")
	// ErrCrashed: the process died.
	ErrCrashed = errors.New("the policy's process died")
	// ErrGarbage: the answer does not decode, is too large, or answers something
	// else.
	ErrGarbage = errors.New("the policy answered garbage")
	// ErrRefused: the policy itself returned an error.
	ErrRefused = errors.New("the policy returned an error")
	// ErrRejected: Options.Check refused the plan; its error is wrapped too.
	ErrRejected = errors.New("the plan was rejected")
	// ErrEvaluation: the host could not evaluate what the policy asked about. That
	// is not the policy's fault.
	ErrEvaluation = errors.New("evaluating plans for the policy failed")
	// ErrBackoff: the process is dead and it is too early to start it again.
	ErrBackoff = errors.New("waiting before the policy's process is started again")
	// ErrBreakerOpen: the policy failed too often and is left alone for a while.
	ErrBreakerOpen = errors.New("the policy's circuit breaker is open")
	// ErrNeeds: the snapshot lacks what the policy needs.
	ErrNeeds = errors.New("the snapshot lacks what the policy needs")
	// ErrParameter: a parameter is not the policy's, or does not parse.
	ErrParameter = errors.New("bad policy parameter")
	// ErrClosed: the host was closed.
	ErrClosed = errors.New("the policy host is closed")
)
