// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package batch reads, writes, joins and splits inference messages on the wire.
//
// A request is read only as far as its header: names, datatypes, shapes and
// parameters become Go values, and tensor bytes stay where the connection put
// them. Assemble joins the tensors of several requests along the batch dimension
// as a list of references, and Split gives every caller its own slice of the
// answer. No tensor byte is copied on the way, and none is ever held in a protobuf
// message.
//
// # Ownership
//
// Received memory is pooled and counted by reference (google.golang.org/grpc/mem).
// Every Request and Response owns one reference to each buffer it mentions,
// views included, and gives them back in Free. Marshal, Assemble and Split
// return values that own references of their own, so the order in which the
// parts are freed does not matter. Bytes that are not tensors (names,
// parameters, shapes) are copied when read and outlive Free; Tensor.Data and
// Tensor.Contents do not.
package batch
