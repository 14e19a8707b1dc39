// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"strconv"
)

// adaptive is ours: it defers only while that pays. Alone, a candidate waits as
// under deferred. But after every event, while a partition is free, the most
// urgent lane (the nearest latest) starts at once if either
//
//   - more than the share `idle` of the usable partitions is free, or
//   - more lanes wait than partitions are free, and the waiting lanes are at
//     least half as many as all usable partitions.
//
// The first rule is for low load: while most partitions idle, nobody needs the
// larger batches that waiting would bring, and a caller need not wait for them.
// At the loads that decide about goodput most partitions are busy, and the rule
// is silent: with idle at one half, no row of README.md's table changes by more
// than its noise. With idle at 1 the rule is off, and the load takes as few
// partitions as it can (Symphony, section 3.5).
//
// The second rule is for many models. More lanes than free partitions means
// that somebody will have to queue for a partition that now idles. How many
// lanes there are tells why: if they are few against partitions, each lane
// keeps several partitions busy, its batches only grow while it waits, and
// idling for a moment costs less than a small batch. If they are many, a lane's
// batch grows anyway until its turn comes, and an idle partition is lost.
//
// A single partition never defers: there is no other one to stagger with.
//
// Deferring alone collapses once more models are busy than there are
// partitions, and starting at once wastes partitions on small batches while
// there are plenty of them; README.md has both measured.
type adaptive struct {
	deferred
	idle float64
}

// defaultIdle is the parameter `idle` unless told otherwise.
const defaultIdle = 0.5

func adaptiveKind() disciplineKind {
	return disciplineKind{
		Description: Description{
			Name:        "adaptive",
			Help:        "defer only while that pays: serve at once while most partitions idle, and the most urgent first when many models wait for few partitions",
			DefaultDrop: "thrift",
			Parameters: []Parameter{{
				Name: "idle", Default: strconv.FormatFloat(defaultIdle, 'g', -1, 64),
				Help: "serve at once while more than this share of the partitions is free; 1 defers at low load too, so that the load takes as few partitions as it can",
			}},
		},
		make: func(params map[string]string) (Discipline, error) {
			text, ok := params["idle"]
			if !ok {
				return adaptive{idle: defaultIdle}, nil
			}
			idle, err := strconv.ParseFloat(text, 64)
			if err != nil || !(idle >= 0 && idle <= 1) {
				return nil, fmt.Errorf("parameter idle=%q is not a number from 0 to 1", text)
			}
			return adaptive{idle: idle}, nil
		},
	}
}

func (adaptive) Name() string        { return "adaptive" }
func (adaptive) DefaultDrop() string { return "thrift" }

func (a adaptive) Hurry(p Pressure) bool {
	return p.Usable == 1 ||
		float64(p.Free) > a.idle*float64(p.Usable) ||
		p.Waiting > p.Free && 2*p.Waiting >= p.Usable
}
