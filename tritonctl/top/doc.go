// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package top shows the state of a running conch in a terminal, as it changes: models, GPUs, what waits, events. It draws what it is given, and
// asks nobody: the state comes from conch's stream of changes.
package top
