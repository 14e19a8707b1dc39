// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package http is Triton's HTTP v2 protocol in and out.
//
// handler.go is a request, top-down. The path decides the route. An inference request becomes a *batch.Request
// (decode.go), goes to the dispatcher, and its answer is rendered as Triton renders it (encode.go). Queries about the
// server and its models go to an [Aggregator], which answers for all partitions (control.go). Settings and shared-memory
// regions are repeated on every partition (fanout.go). Any other request below /v2/ passes through to one partition
// untouched, streams included (proxy.go).
//
// Binary tensors are views of the request's body and of the answer's message and are never copied. Answers, statuses,
// content types and texts of errors are those of Triton 2.51 as observed, quirks included. A request that would crash a
// real server (absurd shapes, absurd nesting) is refused here. Two things differ on purpose: bodies are limited after
// decompression too, and a body that is not what its Content-Encoding says is an error.
package http
