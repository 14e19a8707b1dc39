// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package driver is where Triton processes come from: Embedded runs minitriton
// inside conch, on emulated GPUs; Processes runs one tritonserver per
// partition. Both supervise what they start: a server that dies is reported at
// once, started again with a growing delay, given its models back, and reported
// up.
package driver
