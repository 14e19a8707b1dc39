// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
)

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
)

// Error is an error that conch answered with.
type Error struct {
	Code       Code        `json:"code"`
	Message    string      `json:"message"`
	Violations []Violation `json:"violations,omitempty"`
}

// Error gives the message as conch wrote it.
func (e *Error) Error() string { return e.Message }

// ErrUnreachable means that no conch answered at the admin address.
var ErrUnreachable = errors.New("no conch answers at the admin address")

// CodeOf is the code of err if conch answered with one, else CodeInternal.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

func unreachable(address string, err error) error {
	return fmt.Errorf("%w %s: %w; is conch running, and is --admin (or CONCH_ADMIN) its listen.admin?", ErrUnreachable, address, err)
}
