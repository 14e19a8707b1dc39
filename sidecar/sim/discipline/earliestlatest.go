// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package discipline

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// earliestLatest is Clockwork's scheduler as Symphony describes it (Symphony,
// section 2.2). There is a candidate per batch size b: the b most urgent requests
// of a model together, which have to start at the latest at d - l(b). A partition
// that becomes free takes, of all models' candidates that are still feasible, the
// one with the earliest such moment. Of one model that is the largest feasible
// size, because l grows with b, so one candidate stands for all of its model's.
// Requests that cannot make it even alone are dropped.
//
// It is eager with prefix drop and a list of sizes: with partitions to spare it
// runs small batches. Clockwork's own controller decides before a GPU is free,
// which makes them smaller still: see Ahead in sidecar/sim/reference.
type earliestLatest struct{ sizes []int }

func earliestLatestKind() queue.Kind {
	const sizes, usual = "sizes", "1,2,4,8,16"
	return queue.Kind{
		Description: queue.Description{
			Name:        "earliest-latest",
			Help:        "a free partition takes the batch, of the sizes that there are, that has to start first (Clockwork)",
			DefaultDrop: "prefix",
			Parameters:  []queue.Parameter{{Name: sizes, Default: usual, Help: "batch sizes in rising order, the first 1, such as 1,2,4"}},
		},
		New: func(params map[string]string) (queue.Discipline, error) {
			text, ok := params[sizes]
			if !ok {
				text = usual
			}
			var list []int
			for field := range strings.SplitSeq(text, ",") {
				b, err := strconv.Atoi(strings.TrimSpace(field))
				if err != nil || len(list) == 0 && b != 1 || len(list) > 0 && b <= list[len(list)-1] {
					return nil, fmt.Errorf("parameter %s=%q is not a list of rising numbers that begins with 1", sizes, text)
				}
				list = append(list, b)
			}
			return &earliestLatest{sizes: list}, nil
		},
	}
}

func (*earliestLatest) DefaultDrop() string                           { return "prefix" }
func (*earliestLatest) Exec(now queue.Time, _ *queue.Load) queue.Time { return now }

func (e *earliestLatest) MaxRows(l *queue.Load) int {
	return min(l.Model.MaxBatch, e.sizes[len(e.sizes)-1])
}

func (e *earliestLatest) Size(rows int) int {
	size := 1
	for _, b := range e.sizes {
		if b > rows {
			break
		}
		size = b
	}
	return size
}
