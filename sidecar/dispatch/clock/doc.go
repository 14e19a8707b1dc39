// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package clock is the time of the request path: when it is, an alarm that rings
// closer to its moment than Go's timers do, and timers that tests can stand in
// for.
package clock
