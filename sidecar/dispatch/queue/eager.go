// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// eager is work-conserving: whatever is queued starts as soon as an executor is
// free (Symphony, section 3.4, as the case k = 0). It is best where executors
// are always busy, because batches then grow while they wait; with executors
// to spare it runs small batches.
type eager struct{}

func eagerKind() Kind {
	return Kind{
		Description: Description{
			Name:        "eager",
			Help:        "start whatever is queued as soon as an executor is free",
			DefaultDrop: "window",
		},
		New: func(map[string]string) (Discipline, error) { return eager{}, nil },
	}
}

func (eager) DefaultDrop() string         { return "window" }
func (eager) Exec(now Time, _ *Load) Time { return now }
