// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package discipline

import (
	"fmt"
	"strconv"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// flex is Shepherd's online scheduler, Flex, as Symphony describes it (Symphony,
// section 2.2). There is one candidate per model, and a partition that becomes
// free takes the largest of all. A batch that waits and is at least three times as
// large as one that runs takes its place: what ran is lost, and its requests are
// queued again.
//
// A feasible batch is the longest run from the head of a queue that still meets
// the head's deadline.
//
// Triton cannot abort an execution. Where the Sink is no Preemptor, flex only
// chooses by size.
type flex struct{ factor float64 }

func flexKind() queue.Kind {
	const preempt, usual = "preempt", 3.
	return queue.Kind{
		Description: queue.Description{
			Name:        "flex",
			Help:        "largest batch first, and in simulations one that is much larger preempts a running one (Shepherd); Triton cannot preempt",
			DefaultDrop: "prefix",
			Parameters: []queue.Parameter{{
				Name: preempt, Default: strconv.FormatFloat(usual, 'g', -1, 64),
				Help: "how many times as large as a running batch one must be to preempt it, above 1; 0: never",
			}},
		},
		New: func(params map[string]string) (queue.Discipline, error) {
			text, ok := params[preempt]
			if !ok {
				return flex{factor: usual}, nil
			}
			factor, err := strconv.ParseFloat(text, 64)
			if err != nil || !(factor > 1 || factor == 0) {
				return nil, fmt.Errorf("parameter %s=%q is not a number above 1, or 0", preempt, text)
			}
			return flex{factor: factor}, nil
		},
	}
}

func (flex) DefaultDrop() string                           { return "prefix" }
func (flex) Exec(now queue.Time, _ *queue.Load) queue.Time { return now }
func (flex) Rank(l *queue.Load) queue.Time                 { return queue.Time(-l.Rows) }

func (f flex) Preempts(waiting, running int) bool {
	return f.factor > 0 && float64(waiting) >= f.factor*float64(running)
}
