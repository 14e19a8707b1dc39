// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a refusal as Triton words it: a gRPC code and Triton's text.
type Error struct {
	Code    codes.Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// GRPCStatus lets grpc-go send the error as it is.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

func refuse(code codes.Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return refuse(codes.InvalidArgument, format, args...)
}

// requestError is invalid with the prefix that Triton's core puts before most refusals of a request.
func requestError(id, format string, args ...any) *Error {
	return invalid("%s%s", requestPrefix(id), fmt.Sprintf(format, args...))
}

// requestPrefix names a request as Triton's core does.
func requestPrefix(id string) string {
	if id == "" {
		id = "<id_unknown>"
	}
	return "[request id: " + id + "] "
}

// codeName is how Triton spells a code inside a reason.
func codeName(c codes.Code) string {
	switch c {
	case codes.InvalidArgument:
		return "Invalid argument"
	case codes.NotFound:
		return "Not found"
	case codes.Unavailable:
		return "Unavailable"
	case codes.Unimplemented:
		return "Unsupported"
	case codes.AlreadyExists:
		return "Already exists"
	default:
		return "Internal"
	}
}

// asError gives any error a code: what is not a refusal of ours is internal.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: codes.Internal, Message: err.Error()}
}

// httpStatus is Triton's mapping of its error codes to HTTP.
func httpStatus(c codes.Code) int {
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.InvalidArgument, codes.AlreadyExists, codes.Canceled:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.Unimplemented:
		return http.StatusNotImplemented
	default:
		return http.StatusInternalServerError
	}
}
