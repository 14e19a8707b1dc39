// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"strings"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// DropPolicy chooses which requests of a lane are given up so that the rest can
// still be in time. NewDropPolicy makes one.
type DropPolicy struct {
	name string
	// bounded: batches are kept within the deadline of their first request, and
	// requests that would be late even alone are given up.
	bounded bool
	// hold returns the batch size, in rows, that is worth giving up requests for
	// under a load per executor, and how much later than planned such a batch
	// shall be able to end.
	hold func(l *Load, load float64) (rows int, edge Time)
	// surgeLoad is the load per executor, estimated from the waiting rows, for a
	// policy that holds on to smaller batches during a surge that the rates do not
	// show yet; nil for others.
	surgeLoad func(now Time, l *Load, waiting int) float64
}

func holdNothing(*Load, float64) (int, Time) { return 1, 0 }

// reserve is Conch's own: the window drop with a reserve. No request is given up for a
// batch that is larger than the load needs: see adaptive.Params.Hold.
func reserve(p *adaptive.Params) *DropPolicy {
	return &DropPolicy{name: "reserve", bounded: true, hold: p.Hold, surgeLoad: p.SurgeLoad}
}

// thriftLoss is how much longer per row than at the window drop's size a batch
// may run before it is worth giving up requests: a tenth.
const thriftLoss = .1

func dropPolicies() []*DropPolicy {
	ours := adaptive.Defaults()
	return []*DropPolicy{
		reserve(&ours),
		// Conch's own, too: the window drop with regard to what a larger batch saves. The last
		// rows of a large batch save little time per row, but they cost the requests that must
		// be given up to make room for them. So it holds on only to the smallest b that runs
		// nearly as efficiently as the largest b* within reach: l(b)/b <= 1.1 l(b*)/b*. For a
		// profile without much of a fixed cost that is a batch of a few rows, close to prefix;
		// with a large fixed cost it comes close to window.
		{name: "thrift", bounded: true, hold: func(l *Load, _ float64) (int, Time) { return l.Model.Table.Nearly(l.Model.Reach, thriftLoss), 0 }},
		// Symphony's window drop, which it shares with Nexus (Symphony, section 3.2, GETBATCH
		// "prematurely drop the head of the queue in order to maintain a larger target batch
		// size"). A few heads whose deadlines are near would force a small batch, and small
		// batches make the requests behind them late as well. So the batch is held at the
		// largest size that the rate allows, and heads that cannot finish in a batch of that
		// size are given up, even if a smaller batch could save them.
		{name: "window", bounded: true, hold: func(l *Load, _ float64) (int, Time) { return l.Model.Reach, 0 }},
		// A request is given up only when it would be late even if it were started alone now,
		// on the fastest profile class that serves its model: now + l(its own rows) > its
		// deadline. The batch is then the longest run from the head that still meets the head's
		// deadline (GETBATCH without premature drops, Symphony, section 3.2).
		{name: "prefix", bounded: true, hold: holdNothing},
		// Nothing is given up, and no deadline limits a batch: whatever is queued, up to the row
		// limit. It is how Triton batches, and what holds while a model has no usable profile.
		{name: "none", hold: holdNothing},
	}
}

// DropPolicyNames lists the drop policies.
func DropPolicyNames() []string {
	var names []string
	for _, p := range dropPolicies() {
		names = append(names, p.name)
	}
	return names
}

// NewDropPolicy makes a drop policy by name.
func NewDropPolicy(name string) (*DropPolicy, error) {
	for _, p := range dropPolicies() {
		if p.name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("drop policy %q: %w; there are %s", name, ErrUnknown, strings.Join(DropPolicyNames(), ", "))
}

// leastRows is called when an executor is granted to a lane whose waiting
// requests begin with head: it returns the number of rows that a batch starting
// now should have, given what the drop policy wants to hold. Requests at the
// front that cannot finish in a batch of that size are given up.
//
// It is the smaller of hold and the number of rows that are left when heads are
// moved aside until all the rest fits the deadline of the first that remains:
// there is no point in making room for rows that do not exist.
func leastRows(now Time, l *lane, head *Request, t Table, hold int) int {
	if hold <= 1 || now+t.At(min(hold, l.rows)) <= head.Deadline {
		return 1 // nothing to give up
	}
	// The longest tail of the queue that fits its own first deadline. Walking
	// from the tail, a longer tail has more rows and an earlier deadline, so the
	// first that does not fit ends the search.
	rows := 0
	for r := l.waiting.tail; r != nil && rows < hold; r = r.prev {
		n := rows + int(r.Rows)
		if now+t.At(n) > r.Deadline {
			break
		}
		rows = n
	}
	return max(1, min(rows, hold))
}
