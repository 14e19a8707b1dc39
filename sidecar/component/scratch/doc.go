// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package scratch is what conch does in partitions that no plan has: it measures
// devices and models there, and verifies merge groups.
package scratch
