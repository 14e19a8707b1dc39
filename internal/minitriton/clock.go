// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import "time"

// Clock is time as minitriton sees it.
type Clock interface {
	Now() time.Time
	// Sleep returns once d has passed. Emulated times are only as good as its accuracy.
	Sleep(d time.Duration)
	// NewAlarm returns an unset alarm that calls ring, on a goroutine of its own, each time it goes off.
	NewAlarm(ring func()) Alarm
}

// Alarm goes off once, after the last time given to Set. It may go off once more than it was set.
type Alarm interface {
	Set(d time.Duration)
	// Close ends the alarm; ring is not running and is not called any more once it returns.
	Close()
}
