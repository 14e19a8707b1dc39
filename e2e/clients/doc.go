// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package clients drives Conch with Triton's official clients, unmodified: scripts that use tritonclient in all its ways, whose output must
// be the same in front of Conch as in front of a real tritonserver, and perf_analyzer.
package clients
