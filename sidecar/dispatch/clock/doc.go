// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package clock has the time of the request path: the present time, an alarm that
// rings closer to its moment than Go's timers do, and timers that tests can
// replace.
package clock
