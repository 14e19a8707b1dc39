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

// Triton's errors say in words alone what Conch has to know of them. All that
// Conch reads out of such words is in this file and in lost.go; the words are
// those of Triton 2.51, which foreign_live_test.go provokes on a real server.

// Status is the status of an error of Call: the server's own, without Conch's
// wrapping.
func Status(err error) *status.Status {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus()
	}
	return status.FromContextError(err)
}

// unknownModel begins what a server says of a model that it does not serve.
const unknownModel = "Request for unknown model: "

// LacksModel reports whether a server refused a request because it has no
// version of the model ready that was asked for.
func LacksModel(err error) bool {
	s := Status(err)
	return (s.Code() == codes.NotFound || s.Code() == codes.Unavailable) && strings.HasPrefix(s.Message(), unknownModel)
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

// beginnings are those of what Triton's front and core say of requests that they
// refuse.
var beginnings = []string{
	"[request id: ", unknownModel, "input ", "inference ", "unexpected ", "unable to ", "expected ", "invalid ",
	"Unable to ", "contents field ", "sequence ", "shape ", "'shared_memory", "ModelInfer RPC ", "model ", "failed to ", "parameter ", "Input ",
}

// RefusalText reports whether a text is Triton's about a request that it refused
// before any model had it.
func RefusalText(text string) bool {
	return slices.ContainsFunc(beginnings, func(beginning string) bool { return strings.HasPrefix(text, beginning) })
}

// Refused reports whether Triton refused a request before any model had it. Where
// the code is one that validation does not use, only the surest words count: a
// model may say anything.
func Refused(err error) bool {
	s := Status(err)
	switch s.Code() {
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.AlreadyExists:
		return RefusalText(s.Message())
	}
	return strings.HasPrefix(s.Message(), unknownModel) || strings.HasPrefix(s.Message(), beginnings[0])
}

// FailedExecution reports whether a text is that of the python backend about an
// execution that failed as a whole; other errors of python models are answers.
func FailedExecution(text string) bool {
	return strings.HasPrefix(text, "Failed to process the request(s) for model ") || DeadStub(text)
}

// DeadStub reports whether a text is that of the python backend about a model
// whose process has died, which Triton goes on to call ready.
func DeadStub(text string) bool {
	return strings.HasPrefix(text, "Stub process ") && strings.Contains(text, "is not healthy")
}

// Faulted reports whether an error is of an execution that failed on a server, which may be the model's fault as well as the request's: it is
// not one of a request that Triton refused, that a model calls wrong in so many words, or whose caller went.
func Faulted(err error) bool {
	if err == nil || Refused(err) {
		return false
	}
	switch Status(err).Code() {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented, codes.OutOfRange, codes.Canceled, codes.DeadlineExceeded:
		return false
	}
	return true
}

// RefusesMemory reports whether a server refused a request because of the shared
// memory that it names, and whether because it does not know the region.
func RefusesMemory(err error, region string) (refuses, unknown bool) {
	if err == nil || Lost(err) {
		return false, false
	}
	text := Status(err).Message()
	return strings.Contains(text, "shared memory"), strings.Contains(text, region)
}
