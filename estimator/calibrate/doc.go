// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package calibrate measures a device through a Triton server: it makes micro-models (single operators and small chains over a grid of sizes), has a
// [Runner] serve and run them, and fits a profile bundle with its error on micro-models that were left out.
//
// Measuring is bounded in time, leaves the server idle after each execution for a configured multiple of its time, and can be resumed where it
// ended: every result is in a state file before the next is measured.
package calibrate
