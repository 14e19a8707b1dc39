// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package triton speaks to a Triton Inference Server over gRPC.
//
// Its one job is the wire: tritonpb holds the messages and stubs generated from proto/ (written by us, held against
// testdata/triton-wire.json by a test), and Client is the thin face that drivers and tests use for health, repository control and
// the descriptions of models. Inference traffic does not go through Client: the request path has its own codec.
package triton
