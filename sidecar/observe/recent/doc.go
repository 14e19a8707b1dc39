// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package recent keeps what happened to requests a short while ago: how they ended and where they spent their time, by model, over the statistics
// window, over the last hour and in each of its minutes; the slowest of the last minute; the executions of the last half minute. All of it is bounded.
package recent
