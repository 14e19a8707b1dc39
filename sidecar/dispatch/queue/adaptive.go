// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// adaptive defers only while that costs nobody their deadline. Alone, a
// candidate waits as under deferred. But after every event, while a partition
// is free and more lanes wait than partitions are free, the most urgent lane
// (the nearest latest) starts at once: then partitions are what is short, and
// one that idles while its batch fills is lost to somebody.
//
// Deferring alone collapses once more models are busy than there are
// partitions, and starting at once wastes partitions on small batches while
// there are plenty of them; README.md has both measured.
type adaptive struct{ deferred }

func adaptiveKind() disciplineKind {
	return disciplineKind{
		Description: Description{
			Name:        "adaptive",
			Help:        "defer while partitions are plenty, serve the most urgent at once when more lanes wait than partitions are free",
			DefaultDrop: "window",
		},
		make: func(map[string]string) (Discipline, error) { return adaptive{}, nil },
	}
}

func (adaptive) Name() string          { return "adaptive" }
func (adaptive) Hurry(p Pressure) bool { return p.Waiting > p.Free }
