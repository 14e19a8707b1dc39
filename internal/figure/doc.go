// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package figure is how a command that measures says what it found: one line `figure NAME VALUE UNIT` each, and the same in
// results/COMMAND.json with commit, seed, machine, versions and what was emulated. README and docs cite figures by name; Render makes
// docs/results.md of them.
package figure
