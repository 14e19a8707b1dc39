// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package examples tests the example policies below it, which are written in other languages than Go: each passes the conformance suite as a
// process.
package examples
