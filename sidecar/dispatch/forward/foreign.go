// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What Conch has to know of Triton's errors is in their texts only. All code that
// reads such texts is in this file and in lost.go. The texts are those of Triton
// 2.51, which foreign_live_test.go provokes on a real server.

// Status is the status of an error of Call: the server's own, without Conch's
// wrapping.
func Status(err error) *status.Status {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus()
	}
	return status.FromContextError(err)
}

// unknownModel is the beginning of a server's error about a model that it does not
// serve.
const unknownModel = "Request for unknown model: "

// The errors of a server's queue: the end of one, and the other.
const (
	notQueued = "Exceeds maximum queue size"
	outOfTime = "Request timeout expired"
)

// LacksModel reports whether a server refused a request because it has no
// version of the model ready that was asked for.
func LacksModel(err error) bool {
	s := Status(err)
	return (s.Code() == codes.NotFound || s.Code() == codes.Unavailable) && strings.HasPrefix(s.Message(), unknownModel)
}

// NotQueued reports whether a server refused a request because its queue was full
// (model configuration, "Queue Policy": max_queue_size).
func NotQueued(err error) bool {
	s := Status(err)
	return s.Code() == codes.Unavailable && strings.HasSuffix(s.Message(), notQueued)
}

// OutOfTime reports whether a server refused a request because it had waited for
// too long (timeout_action REJECT).
func OutOfTime(err error) bool {
	s := Status(err)
	return s.Code() == codes.Unavailable && s.Message() == outOfTime
}

// Unloaded reports whether a server refused a request because it does not have
// the model at all, which another server may have.
func Unloaded(err error, model string) bool {
	if err == nil {
		return false
	}
	s := Status(err)
	rest, ok := strings.CutPrefix(s.Message(), unknownModel+"'"+model+"' ")
	return ok && s.Code() == codes.NotFound && (rest == "has no available versions" || rest == "is not found")
}

// beginnings are those of the errors of Triton's front and core about requests
// that they refuse.
var beginnings = []string{
	"[request id: ", unknownModel, "input ", "inference ", "unexpected ", "unable to ", "expected ", "invalid ",
	"Unable to ", "contents field ", "sequence ", "shape ", "'shared_memory", "ModelInfer RPC ", "model ", "failed to ", "parameter ", "Input ",
}

// RefusalText reports whether a text is Triton's error about a request that it
// refused before a model received it.
func RefusalText(text string) bool {
	return slices.ContainsFunc(beginnings, func(beginning string) bool { return strings.HasPrefix(text, beginning) })
}

// GaveUpText reports whether a text is Triton's error about a request that it refused, or that its queue gave up.
func GaveUpText(text string) bool {
	return RefusalText(text) || text == outOfTime || strings.HasSuffix(text, notQueued)
}

// Refused reports whether Triton refused a request before a model received it.
// Where the code is one that validation does not use, only two beginnings count,
// because a model may return any text.
func Refused(err error) bool {
	s := Status(err)
	switch s.Code() {
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.AlreadyExists:
		return RefusalText(s.Message())
	}
	return strings.HasPrefix(s.Message(), unknownModel) || strings.HasPrefix(s.Message(), beginnings[0])
}

// FailedExecution reports whether a text is the python backend's error about an
// execution that failed as a whole; other errors of python models are answers.
func FailedExecution(text string) bool {
	return strings.HasPrefix(text, "Failed to process the request(s) for model ") || DeadStub(text)
}

// DeadStub reports whether a text is the python backend's error about a model
// whose process has died. Triton still reports such a model as ready.
func DeadStub(text string) bool {
	return strings.HasPrefix(text, "Stub process ") && strings.Contains(text, "is not healthy")
}

// Faulted reports whether an execution failed on a server in a way that may be the fault of the model as well as of the request. It is false for
// a request that Triton refused, for one that its queue gave up (UNAVAILABLE), for a code by which a model calls the request invalid, and for a
// request whose caller has gone.
func Faulted(err error) bool {
	if err == nil || Refused(err) {
		return false
	}
	switch Status(err).Code() {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented, codes.OutOfRange, codes.Canceled, codes.DeadlineExceeded,
		codes.Unavailable: // its queue gave it up, or the model was unloaded
		return false
	}
	return true
}

// DeniesMemory reports whether a server refused a request because of the shared
// memory that it names, and whether that is because the server does not know one of
// the regions.
func DeniesMemory(err error, regions ...string) (denies, unknown bool) {
	if err == nil || Lost(err) {
		return false, false
	}
	text := Status(err).Message()
	return strings.Contains(text, "shared memory"), slices.ContainsFunc(regions, func(region string) bool { return strings.Contains(text, region) })
}
