// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package rig starts what is measured and tested from outside: tritonservers with Triton's own dynamic batching, real ones or minitriton,
// on emulated GPUs; and conch, as the process that a user starts, on the same GPUs under the same rules.
package rig
