// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package driver is where Triton processes come from: Embedded runs minitriton
// inside conch, on emulated GPUs; Processes runs one tritonserver per
// partition; Attached stands in front of servers that others run. The first two
// supervise what they start: a server that dies or hangs is reported at once,
// started again with a growing delay, given its models back, and reported up.
// Attached reports the same of servers that it cannot start.
package driver
