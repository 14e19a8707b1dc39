// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// deferred is Symphony's deferred batch scheduling (sections 3.1 and 3.2,
// Algorithm 1). A batch waits until a further request could not join it any
// more: exec = d - l(|B|+1). Until then waiting makes no request late and can only
// enlarge the batch. It also spreads the starts of batches over time, so that the
// executors run staggered.
//
// A batch that can not grow, because it has reached its row limit, starts at
// once: the paper's profiles have no such limit, and there is nothing to wait
// for.
//
// It needs at least about as many executors as busy models: with fewer, every
// candidate waits for its last moment and then finds all executors taken.
type deferred struct{}

func deferredKind() Kind {
	return Kind{
		Description: Description{
			Name:        "deferred",
			Help:        "wait until no further request could join the batch (Symphony); best with more executors than busy models",
			DefaultDrop: "window",
		},
		New: func(map[string]string) (Discipline, error) { return deferred{}, nil },
	}
}

func (deferred) DefaultDrop() string { return "window" }

func (deferred) Exec(now Time, l *Load) Time {
	if l.Full || l.Deadline == Never {
		return now
	}
	return max(now, l.Frontrun)
}
