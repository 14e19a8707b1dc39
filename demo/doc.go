// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command conch-demo is `make demo`: models of a published zoo on four emulated GPUs, first behind Triton's own dynamic batching, then
// behind Conch, at the same load and at each one's own highest; then a Conch to try.
package main
