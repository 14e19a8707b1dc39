// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package progress shows on one line of a terminal what a command is doing, how far it is, and about how long the rest takes. Where no
// person looks, as in a pipe, there is no line: a nil *Task writes nothing.
package progress
