// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

// LinesType is the media type of such lines. An order that answers in either form answers in lines where the caller accepts them.
const LinesType = "application/x-ndjson"

// Line is one line of the answer to an order that takes long: progress while it goes on, then a result or an error.
type Line[P, R any] struct {
	Progress *P     `json:"progress,omitempty"`
	Result   *R     `json:"result,omitempty"`
	Error    *Error `json:"error,omitempty"`
}
