// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpc is the gRPC front: Triton's inference.GRPCInferenceService and
// grpc.health.v1, on the request path without decoding tensors.
//
// ModelInfer and ModelStreamInfer are read at wire level. Control-plane calls are
// answered by an Aggregator, for all partitions as one server. Any other method
// passes through to a partition untouched.
package grpc
