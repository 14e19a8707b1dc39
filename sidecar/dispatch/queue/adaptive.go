// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// adaptive is ours: it defers only while partitions are plenty. Alone, a
// candidate waits as under deferred. But after every event, while a partition
// is free, more lanes wait than partitions are free, and the waiting lanes are
// at least half as many as all usable partitions, the most urgent lane (the
// nearest latest) starts at once.
//
// The first condition means that somebody will have to queue for a partition
// that now idles. The second tells apart why: if lanes are few against
// partitions, each lane keeps several partitions busy, its batches only grow
// while it waits, and idling for a moment costs less than a small batch. If they
// are many, a lane's batch grows anyway until its turn comes, and an idle
// partition is lost.
//
// A single partition never defers: there is no other one to stagger with.
//
// Deferring alone collapses once more models are busy than there are
// partitions, and starting at once wastes partitions on small batches while
// there are plenty of them; README.md has both measured.
type adaptive struct{ deferred }

func adaptiveKind() disciplineKind {
	return disciplineKind{
		Description: Description{
			Name:        "adaptive",
			Help:        "defer while partitions are plenty, serve the most urgent at once when many lanes wait for few partitions",
			DefaultDrop: "thrift",
		},
		make: func(map[string]string) (Discipline, error) { return adaptive{}, nil },
	}
}

func (adaptive) Name() string        { return "adaptive" }
func (adaptive) DefaultDrop() string { return "thrift" }

func (adaptive) Hurry(p Pressure) bool {
	return p.Usable == 1 || p.Waiting > p.Free && 2*p.Waiting >= p.Usable
}
