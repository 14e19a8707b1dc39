// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package driver is where Triton processes come from: Embedded runs minitriton
// inside conch, on emulated GPUs; Processes runs one tritonserver per partition,
// each with a shim that keeps it alive while conch restarts; Attached stands in
// front of servers that others run. A driver starts servers, finds those of an
// earlier conch, and says what they do. It decides nothing: what dies is started
// again by package apply, for as long as it is wanted.
package driver
