// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package http is Triton's HTTP v2 protocol in and out.
//
// handler.go is a request, top-down: the path decides the route; an inference request becomes a *batch.Request
// (decode.go), goes to the dispatcher, and its answer is rendered as Triton renders it (encode.go); questions about the
// server and its models go to an [Aggregator], which answers for all partitions (control.go); settings and
// shared-memory regions are repeated on every partition (fanout.go); whatever Conch does not understand passes through
// to one partition untouched, streams included (proxy.go).
//
// Binary tensors are views of the request's body and of the answer's message and are never copied. Answers, statuses,
// content types and the words of errors are those of Triton 2.51 as observed, quirks included; where an answer would
// kill a real server (absurd shapes, absurd nesting), the request is refused here. Two things differ on purpose: bodies
// are limited after decompression too, and a body that is not what its Content-Encoding says is an error.
package http
