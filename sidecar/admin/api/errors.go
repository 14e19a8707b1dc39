// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import "errors"

// Code classifies an error of the admin API; the HTTP status and the exit
// code of tritonctl follow from it.
type Code string

// The codes that the API answers with.
const (
	CodeInvalid     Code = "invalid"
	CodeNotFound    Code = "not_found"
	CodeConflict    Code = "conflict"
	CodeUnavailable Code = "unavailable"
	CodeRefused     Code = "refused"
	CodeInternal    Code = "internal"
	// CodeUnauthenticated: the caller showed no token, or a wrong one.
	CodeUnauthenticated Code = "unauthenticated"
)

// Error is an error that conch answered with.
type Error struct {
	Code       Code        `json:"code"`
	Message    string      `json:"message"`
	Violations []Violation `json:"violations,omitempty"`
}

// Error gives the message as conch wrote it.
func (e *Error) Error() string { return e.Message }

// CodeOf is the code of err if conch answered with one, else CodeInternal.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}
