// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package clock has the time of what must be exact: of the request path, of emulated executions, of load. Its alarms and sleeps end closer to
// their moment than those of Go's timers do, and tests can replace it.
package clock
