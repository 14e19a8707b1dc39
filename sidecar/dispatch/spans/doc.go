// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package spans makes the OpenTelemetry spans of the request path: one per
// request, which continues the trace of its caller (W3C Trace Context: the header
// traceparent in HTTP, the metadata of that name in gRPC), one for its time in
// the queue, and one per execution, which Triton's own trace continues and which
// links to every request that shares it.
//
// Tracing that is off is a nil *Tracer, and a request that is not sampled is a nil
// *Request: their methods do nothing, allocate nothing and read no clock. The
// TracerProvider (package sidecar/tracing) decides what happens to spans.
package spans
