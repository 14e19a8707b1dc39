// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package onnx reads and writes ONNX models without holding their weights in memory.
//
// Open decodes the protobuf messages of a model at wire level and keeps the graph: nodes, attributes, value types, and for each
// tensor its type, its dimensions and the byte range where its elements lie, in the model file or in a file of external data beside
// it. Elements are read on demand (Model.Data, Model.Reader). An index of a model of hundreds of megabytes takes
// milliseconds, because a tensor's elements are skipped by their length; a full protobuf parser would copy them, several times over.
//
// The file is read with positioned reads, not through a memory map: a model that its owner truncates while it is being read is an
// error then, not a fault that ends the process.
//
// Files are untrusted. Lengths are checked against the message around them, products of dimensions against overflow, nesting and
// memory against Limits, and external data that lies outside of the model's directory is refused, links included.
//
// Write is the way back: a model whose tensors are streamed from wherever they lie into one file of external data, each aligned to
// 4096 bytes, so that models past protobuf's limit of 2 GB can be written and their weights can be mapped by a loader.
//
// Field numbers are those of the ONNX IR specification (https://onnx.ai/onnx/repo-docs/IR.html) with protobuf messages declared in
// proto/onnx.proto.
package onnx
