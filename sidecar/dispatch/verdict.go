// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// verdict is how Triton's statistics count a request.
type verdict uint8

const (
	// uncounted requests were refused before they reached a model.
	uncounted verdict = iota
	succeeded
	// The others are failures, by the reasons of nv_inference_request_failure.
	failedBackend
	failedCanceled
	failedRejected
	failedOther

	verdicts
)

// reason is the metric's label; empty for what is no failure.
func (v verdict) reason() string {
	switch v {
	case failedBackend:
		return "BACKEND"
	case failedCanceled:
		return "CANCELED"
	case failedRejected:
		return "REJECTED"
	case failedOther:
		return "OTHER"
	}
	return ""
}

// verdictOf returns how Triton would count a request with this outcome.
func verdictOf(o *Outcome, err error, backend string, ran bool) verdict {
	switch o.Result {
	case OK, Late, Cold:
		return succeeded
	case Dropped:
		return failedRejected
	case Cancelled:
		return failedCanceled
	case Refused:
		if strings.HasPrefix(o.Reason, "queue_") {
			return failedRejected // Triton's own queue has a limit too, and counts so
		}
		return uncounted
	}
	if !ran {
		return failedOther
	}
	return verdictOfError(err, backend)
}

// verdictOfError returns how Triton 2.51 was observed to count a server's error. The
// error does not show it directly: a request that Triton refuses and one that a
// model fails both come back as a status.
func verdictOfError(err error, backend string) verdict {
	s := forward.Status(err)
	text := s.Message()
	if strings.HasPrefix(text, "in ensemble '") { // of a step, whatever refused or failed that: the ensemble's own validation says nothing of steps
		return failedBackend
	}
	switch s.Code() {
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.AlreadyExists, codes.OutOfRange, codes.ResourceExhausted:
		// A python model may choose these codes for its own errors. Their text is the
		// model's; validation's is Triton's.
		if backend == "python" && s.Code() != codes.ResourceExhausted && !forward.RefusalText(text) {
			return succeeded
		}
		return uncounted
	case codes.Unavailable:
		switch {
		case forward.LacksModel(err), forward.NotQueued(err):
			return uncounted
		case forward.OutOfTime(err):
			return failedRejected
		}
		return failedOther
	case codes.Canceled, codes.DeadlineExceeded:
		return failedCanceled
	}
	switch {
	case backend != "python", forward.FailedExecution(text):
		return failedBackend
	}
	// A python model's own error, in its answer.
	return succeeded
}
