// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package minitriton is a small Triton Inference Server inside the process, for trying, testing and measuring Conch without a GPU.
//
// It serves Triton's gRPC and HTTP v2 protocols and metrics from a model repository in Triton's layout. A model either emulates a GPU
// (its config.pbtxt carries conch_emulate_* parameters: an execution takes beta + alpha*rows, everything on one partition takes turns,
// partitions of one GPU slow each other) or is one of a few small built-in models (parameter conch_builtin). Requests are scheduled
// by Triton's own rules, so that minitriton is also the honest baseline that Conch is measured against.
//
// A reshape is looked at by the built-in model that tells of it alone, and batch_input by none. The direct strategy of the sequence batcher
// runs one request at a time: which sequences share an execution is not for a client to see. A region of shared memory begins at its
// offset; the real 2.51 adds the offset once more and reads what lies there. A queue with policies is looked at whenever an instance is
// free; the real one sometimes sleeps for half a second first. A response cache is there in name only, as in a server without
// --cache-config, and traces are never written.
//
// The suite in e2e/conformance holds minitriton and a real tritonserver to the same answers: where they differ, minitriton is wrong.
package minitriton
